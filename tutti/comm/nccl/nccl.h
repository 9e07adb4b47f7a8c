#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <torch/types.h>

#include "tutti/comm/on_device.h"
#include "tutti/transport/failures.h"
#include "tutti/transport/rendezvous.h"

namespace tutti::comm {

// Returns true if this build has NCCL.
bool nccl_built();

// Returns a name that identifies the GPU on its host, no matter which GPUs each process can see. Throws
// Unimplemented if the build has no NCCL.
std::string gpu_identity(torch::Device gpu);

// Connects ranks that each have a GPU of their own over NCCL, using LibTorch's c10d. Every rank calls this
// with the same board, or part of a board, that nothing else uses (with_prefix); it must exist as long as the
// result. Waits until all ranks are connected, and throws a Timeout that names the missing ones. c10d never
// ends the process. Throws Unimplemented if the build has no NCCL.
std::unique_ptr<OnDevice> nccl_on_device(std::shared_ptr<Rendezvous> board, torch::Device gpu,
                                         const FailuresOptions& options, std::chrono::milliseconds timeout);

}  // namespace tutti::comm

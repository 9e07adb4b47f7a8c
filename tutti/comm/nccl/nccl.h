#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <torch/types.h>

#include "tutti/comm/failure_board.h"
#include "tutti/comm/rendezvous.h"
#include "tutti/comm/transport.h"

namespace tutti::comm {

// Whether this build can do it.
bool nccl_built();

// Which of its host's GPUs this is, whatever each process sees of them. Without NCCL at build time:
// Unimplemented.
std::string gpu_identity(torch::Device gpu);

// NCCL, as LibTorch's c10d has it, between ranks that have each a GPU of their own. Every rank calls it with
// the same table, or part of a table that serves nothing else (with_prefix); it has to last as long as the
// result. Returns when all are connected; whoever has not come is named in the Timeout. The process is never
// ended by c10d. Without NCCL at build time: Unimplemented.
std::unique_ptr<OnDevice> nccl_on_device(std::shared_ptr<Rendezvous> table, torch::Device gpu,
                                         const BoardOptions& options, std::chrono::milliseconds timeout);

}  // namespace tutti::comm

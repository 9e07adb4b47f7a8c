#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include <torch/types.h>

#include "tutti/comm/nccl/c10d_compat.h"
#include "tutti/comm/on_device.h"
#include "tutti/transport/failures.h"
#include "tutti/transport/rendezvous.h"

namespace tutti::comm {

// A backend of c10d that sends all messages between startCoalescing() and endCoalescing() together, and whose
// work reports its end by isCompleted(); and functions that not all versions of c10d have.
struct C10dBackend {
  c10::intrusive_ptr<compat::Backend> group;
  std::string name;                                 // "nccl"
  std::function<bool(const torch::Tensor&)> takes;  // OnDevice::takes()
  std::function<bool(torch::ScalarType)> adds;      // has its own all-reduce for this type
  std::function<void()> shut_down;                  // called when no operation is in progress
  // Makes all operations in progress end soon. Called from a different thread than uses the group.
  std::function<void()> abort;
};

// Wraps a backend that every rank has created. Waits until all ranks have connected through it on this
// device; throws an error that names the ranks that are late. Nothing else may use the board (with_prefix),
// and it must exist as long as the result.
std::unique_ptr<OnDevice> c10d_device(std::shared_ptr<Rendezvous> board, C10dBackend backend,
                                      torch::Device device, const FailuresOptions& options,
                                      std::chrono::milliseconds timeout);

}  // namespace tutti::comm

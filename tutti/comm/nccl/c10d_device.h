#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include <torch/types.h>

#include "tutti/comm/failure_board.h"
#include "tutti/comm/gloo/c10d_compat.h"
#include "tutti/comm/rendezvous.h"
#include "tutti/comm/transport.h"

namespace tutti::comm {

// A backend of c10d whose messages between startCoalescing() and endCoalescing() go all at once, and whose
// work tells by isCompleted() that it is done. Besides, what not all versions of c10d have words for.
struct C10dBackend {
  c10::intrusive_ptr<compat::Backend> group;
  std::string name;                                 // "nccl"
  std::function<bool(const torch::Tensor&)> takes;  // OnDevice::takes()
  std::function<bool(torch::ScalarType)> adds;      // OwnAllReduce::adds()
  std::function<void()> shut_down;                  // when nothing is under way
  // What is under way is over soon, in whatever way. From another thread than uses the group.
  std::function<void()> abort;
};

// Of a backend that all ranks have made, each for itself. They meet in it, on this device, before the
// function returns; who does not come in time is named. The table serves nothing else (with_prefix), and has
// to last as long as the result.
std::unique_ptr<OnDevice> c10d_device(std::shared_ptr<Rendezvous> table, C10dBackend backend,
                                      torch::Device device, const BoardOptions& options,
                                      std::chrono::milliseconds timeout);

}  // namespace tutti::comm

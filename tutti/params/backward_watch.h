#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tutti/params/parameters.h"

namespace torch::autograd {
struct Node;
}

namespace tutti {

// Tells during a backward pass which gradients are complete, however often a parameter was used: `done` is
// called with the index in Parameters::trained(), by autograd's thread. One that was not used is not heard
// of. The parameters outlive the watch.
class BackwardWatch {
 public:
  BackwardWatch(Parameters& parameters, const std::function<void(size_t parameter)>& done);
  ~BackwardWatch();
  BackwardWatch(const BackwardWatch&) = delete;
  BackwardWatch& operator=(const BackwardWatch&) = delete;

 private:
  // Where autograd adds a gradient up, and our hook there.
  std::vector<std::pair<std::shared_ptr<torch::autograd::Node>, uintptr_t>> hooks_;
};

}  // namespace tutti

#pragma once

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "tutti/params/parameters.h"

namespace tutti {

// Tells during a backward pass which gradients are complete, however often a parameter was used: `before` is
// called when autograd is about to add to a gradient, and nothing is added if it throws; `done` when that has
// been done. Both get the index in Parameters::trained() and are called by autograd's thread. Of a parameter
// that was not used nothing is heard. All parameters are still trained. They outlive the watch.
class BackwardWatch {
 public:
  using Call = std::function<void(size_t parameter)>;
  BackwardWatch(Parameters& parameters, const Call& before, const Call& done);
  ~BackwardWatch();
  BackwardWatch(const BackwardWatch&) = delete;
  BackwardWatch& operator=(const BackwardWatch&) = delete;

 private:
  BackwardWatch() = default;  // nothing is watched yet: what fails later leaves no hook behind

  // Our hooks at each of the parameters, and what takes away those where autograd adds its gradient up.
  std::vector<std::pair<torch::Tensor, unsigned>> before_;
  std::vector<std::function<void()>> take_away_;
};

}  // namespace tutti

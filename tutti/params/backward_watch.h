#pragma once

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "tutti/params/parameters.h"

namespace tutti {

// Reports during a backward pass which gradients are complete, however often a parameter is used. Calls
// `before` when autograd is about to add to a gradient (if it throws, nothing is added) and `done` after
// that. Both get the index in Parameters::trained(), run on autograd's thread, and are not called for unused
// parameters. All trained parameters must still require gradients, and must outlive the watch.
class BackwardWatch {
 public:
  using Call = std::function<void(size_t parameter)>;
  BackwardWatch(Parameters& parameters, const Call& before, const Call& done);
  ~BackwardWatch();
  BackwardWatch(const BackwardWatch&) = delete;
  BackwardWatch& operator=(const BackwardWatch&) = delete;

 private:
  BackwardWatch() = default;  // delegated to, so that a constructor that throws later still removes its hooks

  // The hooks on the parameters, and functions that remove the hooks on autograd's gradient accumulators.
  std::vector<std::pair<torch::Tensor, unsigned>> before_;
  std::vector<std::function<void()>> take_away_;
};

}  // namespace tutti

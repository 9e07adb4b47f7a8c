#pragma once

#include <torch/types.h>

// LibTorch has one generator of the CPU for the whole process.
namespace tutti::ps {

torch::Tensor random_state();
// InvalidArgument: no such state.
void set_random_state(const torch::Tensor& state);

// Draws from another state for as long as it lives; then the process goes on with its own. One at a time.
class RandomScope {
 public:
  explicit RandomScope(const torch::Tensor& state) : own_(random_state()) { set_random_state(state); }
  ~RandomScope() { set_random_state(own_); }
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

 private:
  torch::Tensor own_;
};

}  // namespace tutti::ps

#pragma once

#include <torch/types.h>

// The state of LibTorch's default CPU generator, of which there is one per process.
namespace tutti::ps {

torch::Tensor random_state();
// Throws InvalidArgument if the tensor is not a generator state.
void set_random_state(const torch::Tensor& state);

// Sets another state for its lifetime and then restores the previous one. Only one may exist at a time.
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

#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

namespace tutti {

// Returns the states of LibTorch's default generators of the CPU and of the device.
std::vector<torch::Tensor> generator_states(torch::Device device);
// Sets them back. Throws InvalidArgument if they are not states of these generators.
void set_generator_states(torch::Device device, const std::vector<torch::Tensor>& states);

// LibTorch's default generators of the CPU and of a device. The destructor sets them back to the state in
// which the constructor found them, so that the numbers drawn meanwhile do not disturb those of the program.
// The generators belong to the whole process: threads that draw numbers at the same time disturb one another.
class RandomScope {
 public:
  explicit RandomScope(torch::Device device) : device_(device), before_(generator_states(device)) {}
  ~RandomScope() { set_generator_states(device_, before_); }
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

  void seed(uint64_t seed);

 private:
  const torch::Device device_;
  const std::vector<torch::Tensor> before_;
};

}  // namespace tutti

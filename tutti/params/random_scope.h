#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Generator.h>
#include <torch/types.h>

namespace tutti {

// LibTorch's default generators of the CPU and of a device. The destructor sets them back to the state in
// which the constructor found them, so that the numbers drawn meanwhile do not disturb those of the program.
// The generators belong to the whole process: threads that draw numbers at the same time disturb one another.
class RandomScope {
 public:
  explicit RandomScope(torch::Device device);
  ~RandomScope();
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

  void seed(uint64_t seed);

 private:
  struct Saved {
    at::Generator generator;
    torch::Tensor state;
  };

  std::vector<Saved> saved_;
};

// Returns the states of LibTorch's default generators of the CPU and of the device.
std::vector<torch::Tensor> generator_states(torch::Device device);
// Sets them back. Throws InvalidArgument if they are not states of these generators.
void set_generator_states(torch::Device device, const std::vector<torch::Tensor>& states);

}  // namespace tutti

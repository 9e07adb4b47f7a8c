#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include <torch/types.h>

namespace tutti {

// Returns the states of LibTorch's default generators of the CPU and of the device.
std::vector<torch::Tensor> generator_states(torch::Device device);
// Sets them back. Throws InvalidArgument if they are not states of these generators.
void set_generator_states(torch::Device device, const std::vector<torch::Tensor>& states);

// Held by threads of Tutti while they draw numbers from these generators, which belong to the whole process.
// A thread that holds it must not wait for another task.
std::mutex& generator_mutex();

// LibTorch's default generators of the CPU and of a device. The destructor sets them back to the state in
// which the constructor found them, so that the numbers drawn meanwhile do not disturb the numbers of the
// program. Threads that draw numbers at the same time disturb one another, unless they hold
// generator_mutex().
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

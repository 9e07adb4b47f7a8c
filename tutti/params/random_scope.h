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

}  // namespace tutti

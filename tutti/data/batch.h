#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/types.h>

namespace tutti {

// Named tensors with one row an example. The first is the model's input where nothing else is said. A value;
// copying copies handles. May be empty of examples (size() == 0), and is then never given to a loss.
class Batch {
 public:
  using Tensors = std::vector<std::pair<std::string, torch::Tensor>>;

  Batch() = default;
  // Every tensor needs the same first dimension, every name may occur once; else InvalidArgument.
  explicit Batch(Tensors tensors);

  // A name that is not there is an InvalidArgument that lists those that are.
  const torch::Tensor& operator[](std::string_view name) const;
  bool has(std::string_view name) const;
  const torch::Tensor& front() const;
  const Tensors& tensors() const { return tensors_; }

  // Examples.
  int64_t size() const;

  // The same batch on another device. To a GPU, the copy is asynchronous where the memory is pinned.
  Batch to(torch::Device device) const;
  Batch pinned() const;

 private:
  Tensors tensors_;
};

}  // namespace tutti

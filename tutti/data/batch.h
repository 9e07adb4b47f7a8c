#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/types.h>

namespace tutti {

// Named tensors with one row per example. A value; copying copies handles. May have no examples (size() ==
// 0), and is then never passed to a loss.
class Batch {
 public:
  using Tensors = std::vector<std::pair<std::string, torch::Tensor>>;

  Batch() = default;
  // All tensors need the same first dimension, and names must be unique; else InvalidArgument.
  explicit Batch(Tensors tensors);

  // An unknown name is an InvalidArgument that lists the existing names.
  const torch::Tensor& operator[](std::string_view name) const;
  bool has(std::string_view name) const;
  const torch::Tensor& front() const;
  const Tensors& tensors() const { return tensors_; }

  // The number of examples.
  int64_t size() const;

  // Returns the batch on another device. A copy to a GPU is asynchronous if the memory is pinned.
  Batch to(torch::Device device) const;
  Batch pinned() const;

 private:
  Tensors tensors_;
};

}  // namespace tutti

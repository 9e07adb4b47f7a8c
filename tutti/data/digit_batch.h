#pragma once

#include <cstdint>

#include <torch/types.h>

#include "tutti/data/batch.h"

namespace tutti::data {

// Collects digits into a batch with the tensors that all digit sources have: "image" (float32, Nx1x28x28, 0
// to 1) and "label" (int64, N).
class DigitBatch {
 public:
  explicit DigitBatch(int64_t size);

  // Adds a digit of 28x28 bytes. Must be called `size` times.
  void add(const uint8_t* pixels, int64_t label);

  Batch finish();

 private:
  torch::Tensor images_;
  torch::Tensor labels_;
  float* next_pixel_;
  int64_t* next_label_;
};

}  // namespace tutti::data

#pragma once

#include <cstdint>

#include <torch/types.h>

#include "tutti/data/batch.h"

namespace tutti::data {

// Collects digits, one after the other, into the batch that every source of them gives: "image" (float32,
// Nx1x28x28, 0 to 1) and "label" (int64, N).
class DigitBatch {
 public:
  explicit DigitBatch(int64_t size);

  // 28x28 bytes. As often as `size` says.
  void add(const uint8_t* pixels, int64_t label);

  Batch finish();

 private:
  torch::Tensor images_;
  torch::Tensor labels_;
  float* next_pixel_;
  int64_t* next_label_;
};

}  // namespace tutti::data

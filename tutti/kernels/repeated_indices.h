#pragma once

#include <cstdint>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <ATen/ops/sort.h>

namespace tutti::kernels {

inline constexpr std::string_view kRepeated =
    "of several values with one index, any thread's may be the last";

// Returns true if LibTorch writes so many values with several threads, and some go to the same place.
inline bool has_repeated(const at::Tensor& index, int64_t values) {
  constexpr int64_t kOfOneThread = 1024;  // fewer than LibTorch gives to a second thread
  if (values < kOfOneThread || index.numel() < 2) return false;
  const at::Tensor sorted = std::get<0>(at::sort(index.reshape({-1})));
  return sorted.slice(0, 1).eq(sorted.slice(0, 0, -1)).any().item<bool>();
}

}  // namespace tutti::kernels

#pragma once

#include <cstdint>

namespace tutti::kernels {

// Windows over planes of `height` x `width` elements. Those that lie partly outside are cut.
struct Windows {
  int64_t height, width;
  int64_t kernel_height, kernel_width;
  int64_t stride_height, stride_width;
  int64_t padding_height, padding_width;
  int64_t dilation_height, dilation_width;
  int64_t rows, columns;  // of windows
};

// Finds the largest element of each window of `planes` planes, and its place in its plane. The first one
// counts if several are the largest; a NaN is larger than any number, and the last one counts. These are the
// results of LibTorch, whose kernel for planes looks at one element after the other.
void find_largest(const Windows& windows, const float* planes, int64_t count, float* values, int64_t* places);

}  // namespace tutti::kernels

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

// The gradient of planes, made of the gradients of windows and of the places that they found. Each element is
// the sum of the gradients of the windows that found it, which are added to 0 in the order of the windows.
// That is the result of LibTorch. The windows have no dilation. An element of each of `channels` planes, the
// same for windows and planes, lies together; a single one has windows that are two elements wide, without
// padding, beside each other.
struct LargestGradients {
  Windows of;
  int64_t channels;
  const float* gradient;
  const int64_t* places;
  float* out;
};

// Computes rows `first` to `end` of all planes, which lie one after the other. Returns how many windows found
// a place there. These are all windows together; if not, a place is outside of its window, and the result is
// not LibTorch's.
int64_t spread_gradients(const LargestGradients& all, int64_t first, int64_t end);

}  // namespace tutti::kernels

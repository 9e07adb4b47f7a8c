#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include <ATen/core/Tensor.h>

#include "tutti/kernels/convolution_geometry.h"
#include "tutti/kernels/parallel.h"

// The weights of convolutions, and their gradients, in the order in which the loops read and write them.
namespace tutti::kernels {

// Copies weights (output channels of all groups, input channels, taps) so that element (o, i, t) goes to
// to[o * steps[0] + i + t * steps[1]], with o counted within its group and `group_step` between groups.
template <class T>
void arrange_weights(const Geometry& of, const at::Tensor& weight, T* to, std::array<int64_t, 2> steps,
                     int64_t group_step) {
  const bool last = of.channels_last && weight.is_contiguous(format_of(weight, true));
  const at::Tensor given = last ? weight : weight.contiguous();
  const T* const from = given.data_ptr<T>();
  const int64_t taps = size_of(of.kernel);
  const int64_t channels = of.input_channels;
  in_parallel(of.groups * of.output_channels, channels * taps, [&](int64_t first, int64_t end) {
    for (int64_t o = first; o < end; ++o) {
      const T* const row = from + o * channels * taps;
      T* const to_row = to + o / of.output_channels * group_step + o % of.output_channels * steps[0];
      for (int64_t t = 0; t < taps; ++t) {
        if (last || taps == 1)
          std::copy_n(row + t * channels, channels, to_row + t * steps[1]);
        else
          for (int64_t i = 0; i < channels; ++i) to_row[t * steps[1] + i] = row[i * taps + t];
      }
    }
  });
}

// Copies `from` (groups, taps, input channels, output channels of a group) to contiguous weights.
template <class T>
void arrange_gradient(const Geometry& of, const T* from, T* to) {
  constexpr int64_t kTogether = 64 / sizeof(T);  // the elements of a line of the cache
  const int64_t taps = size_of(of.kernel);
  const int64_t parts = (of.output_channels + kTogether - 1) / kTogether;
  const int64_t terms = of.input_channels * taps;
  in_parallel(of.groups * parts, terms * kTogether, [&](int64_t first, int64_t end) {
    for (int64_t part = first; part < end; ++part) {
      const int64_t group = part / parts;
      const int64_t o = part % parts * kTogether;
      const int64_t count = std::min(kTogether, of.output_channels - o);
      const T* const lines = from + group * terms * of.output_channels + o;
      T* const rows = to + (group * of.output_channels + o) * terms;
      for (int64_t i = 0; i < of.input_channels; ++i)
        for (int64_t t = 0; t < taps; ++t)
          for (int64_t j = 0; j < count; ++j)
            rows[j * terms + i * taps + t] = lines[(t * of.input_channels + i) * of.output_channels + j];
    }
  });
}

}  // namespace tutti::kernels

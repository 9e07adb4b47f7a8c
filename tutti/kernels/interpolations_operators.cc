// Bilinear interpolation of images and its gradient. Each product and each sum has one rounding, and the
// gradient of a pixel is added up in the order of the pixels of the result.
#include <algorithm>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/upsample_bilinear2d_backward_cpu_dispatch.h>
#include <ATen/ops/upsample_bilinear2d_cpu_dispatch.h>

#include "tutti/kernels/operators.h"
#include "tutti/kernels/parallel.h"
#include "tutti/kernels/results.h"

namespace tutti::kernels {
namespace {

using Factor = c10::optional<double>;

// The two pixels of a dimension between which a pixel of the result lies.
template <class T>
struct Between {
  int64_t low;
  int64_t high;
  T low_weight;
  T high_weight;
};

template <class T>
std::vector<Between<T>> pixels_of(int64_t in, int64_t out, bool align_corners, const Factor& factor) {
  T step = out > 1 && align_corners ? static_cast<T>(in - 1) / static_cast<T>(out - 1) : 0;
  if (!align_corners)
    step = factor.has_value() && *factor > 0 ? static_cast<T>(1 / *factor)
                                             : static_cast<T>(in) / static_cast<T>(out);
  std::vector<Between<T>> all;
  for (int64_t i = 0; i < out; ++i) {
    T place = step * static_cast<T>(i);
    if (!align_corners)
      place = std::max(step * (static_cast<T>(i) + static_cast<T>(0.5)) - static_cast<T>(0.5), T{0});
    const int64_t low = std::min(static_cast<int64_t>(place), in - 1);
    const T weight = std::min(std::max(place - static_cast<T>(low), T{0}), T{1});
    all.push_back({low, std::min(low + 1, in - 1), 1 - weight, weight});
  }
  return all;
}

// Planes of pixels, each of which has `channels` numbers: 1 if the channels of an image are planes.
struct Planes {
  int64_t count;
  int64_t channels;
};

Planes planes_of(const at::Tensor& images, at::MemoryFormat format) {
  if (format == at::MemoryFormat::ChannelsLast) return {images.size(0), images.size(1)};
  return {images.size(0) * images.size(1), 1};
}

// Calls at(row, column, first of the four pixels' numbers...) for all pixels of a plane of the result.
template <class T, class At>
void for_each_pixel(const std::vector<Between<T>>& rows, const std::vector<Between<T>>& columns,
                    int64_t width, int64_t channels, const At& at) {
  int64_t to = 0;
  for (const Between<T>& row : rows) {
    for (const Between<T>& column : columns) {
      const auto from = [&](int64_t y, int64_t x) { return (y * width + x) * channels; };
      at(to, row, column, from(row.low, column.low), from(row.low, column.high), from(row.high, column.low),
         from(row.high, column.high));
      to += channels;
    }
  }
}

template <class T>
void interpolate(const at::Tensor& in, const at::Tensor& out, const Planes& planes,
                 const std::vector<Between<T>>& rows, const std::vector<Between<T>>& columns) {
  const int64_t width = in.size(3);
  const int64_t in_size = in.size(2) * width * planes.channels;
  const int64_t out_size = out.size(2) * out.size(3) * planes.channels;
  const T* const all_in = in.data_ptr<T>();
  T* const all_out = out.data_ptr<T>();
  in_parallel(planes.count, 8 * out_size, [&](int64_t first, int64_t last) {
    for (int64_t plane = first; plane < last; ++plane) {
      const T* const from = all_in + plane * in_size;
      T* const to = all_out + plane * out_size;
      for_each_pixel(rows, columns, width, planes.channels,
                     [&](int64_t at, const Between<T>& row, const Between<T>& column, int64_t a, int64_t b,
                         int64_t c, int64_t d) {
                       for (int64_t k = 0; k < planes.channels; ++k) {
                         const T low = from[a + k] * column.low_weight + from[b + k] * column.high_weight;
                         const T high = from[c + k] * column.low_weight + from[d + k] * column.high_weight;
                         to[at + k] = low * row.low_weight + high * row.high_weight;
                       }
                     });
    }
  });
}

template <class T>
void add_gradients(const at::Tensor& gradient, const at::Tensor& sums, const Planes& planes,
                   const std::vector<Between<T>>& rows, const std::vector<Between<T>>& columns) {
  const int64_t width = sums.size(3);
  const int64_t sums_size = sums.size(2) * width * planes.channels;
  const int64_t gradient_size = gradient.size(2) * gradient.size(3) * planes.channels;
  const T* const all_gradients = gradient.data_ptr<T>();
  T* const all_sums = sums.data_ptr<T>();
  in_parallel(planes.count, 8 * gradient_size, [&](int64_t first, int64_t last) {
    for (int64_t plane = first; plane < last; ++plane) {
      const T* const from = all_gradients + plane * gradient_size;
      T* const to = all_sums + plane * sums_size;
      for_each_pixel(rows, columns, width, planes.channels,
                     [&](int64_t at, const Between<T>& row, const Between<T>& column, int64_t a, int64_t b,
                         int64_t c, int64_t d) {
                       for (int64_t k = 0; k < planes.channels; ++k) {
                         const T of = from[at + k];
                         to[a + k] += row.low_weight * column.low_weight * of;
                         to[b + k] += row.low_weight * column.high_weight * of;
                         to[c + k] += row.high_weight * column.low_weight * of;
                         to[d + k] += row.high_weight * column.high_weight * of;
                       }
                     });
    }
  });
}

// Calls with_type(T()) for the type in which the images are computed.
template <class Call>
void by_float_type(const at::Tensor& images, const Call& with_type) {
  if (images.scalar_type() == at::kFloat) return with_type(float());
  with_type(double());
}

bool is_interpolated(const char* name, const at::Tensor& images, at::IntArrayRef size) {
  if (!are_reduced(name, images)) {
    if (images.scalar_type() == at::kByte) not_covered(name, "Byte");
    return false;
  }
  return images.dim() == 4 && images.numel() > 0 && size.size() == 2 && size[0] > 0 && size[1] > 0;
}

at::Tensor bilinear(const at::Tensor& self, at::IntArrayRef size, bool align_corners, Factor rows_factor,
                    Factor columns_factor) {
  if (!is_interpolated("aten::upsample_bilinear2d", self, size))
    return at::cpu::upsample_bilinear2d(self, size, align_corners, rows_factor, columns_factor);
  const at::MemoryFormat format = self.suggest_memory_format();
  const at::Tensor in = widened(self).contiguous(format);
  const at::Tensor out =
      at::empty({in.size(0), in.size(1), size[0], size[1]}, in.options().memory_format(format));
  by_float_type(in, [&](auto zero) {
    using T = decltype(zero);
    interpolate<T>(in, out, planes_of(in, format),
                   pixels_of<T>(in.size(2), size[0], align_corners, rows_factor),
                   pixels_of<T>(in.size(3), size[1], align_corners, columns_factor));
  });
  return out.to(self.scalar_type());
}

at::Tensor bilinear_backward(const at::Tensor& gradient, at::IntArrayRef size, at::IntArrayRef input_size,
                             bool align_corners, Factor rows_factor, Factor columns_factor) {
  const bool fits = input_size.size() == 4 && gradient.dim() == 4 && size.size() == 2 &&
                    gradient.sizes() == at::IntArrayRef({input_size[0], input_size[1], size[0], size[1]});
  if (!is_interpolated("aten::upsample_bilinear2d_backward", gradient, size) || !fits)
    return at::cpu::upsample_bilinear2d_backward(gradient, size, input_size, align_corners, rows_factor,
                                                 columns_factor);
  const at::MemoryFormat format = gradient.suggest_memory_format();
  const at::Tensor in = widened(gradient).contiguous(format);
  const at::Tensor sums = at::empty(input_size, in.options().memory_format(format)).zero_();
  by_float_type(in, [&](auto zero) {
    using T = decltype(zero);
    add_gradients<T>(in, sums, planes_of(in, format),
                     pixels_of<T>(input_size[2], size[0], align_corners, rows_factor),
                     pixels_of<T>(input_size[3], size[1], align_corners, columns_factor));
  });
  return sums.to(gradient.scalar_type());
}

at::Tensor& bilinear_out(const at::Tensor& self, at::IntArrayRef size, bool align_corners, Factor rows_factor,
                         Factor columns_factor, at::Tensor& out) {
  return write_result(bilinear(self, size, align_corners, rows_factor, columns_factor), out);
}

at::Tensor& bilinear_backward_out(const at::Tensor& gradient, at::IntArrayRef size,
                                  at::IntArrayRef input_size, bool align_corners, Factor rows_factor,
                                  Factor columns_factor, at::Tensor& out) {
  return write_result(
      bilinear_backward(gradient, size, input_size, align_corners, rows_factor, columns_factor), out);
}

}  // namespace

void register_interpolations(Registrar& library) {
  library.impl("upsample_bilinear2d", bilinear);
  library.impl("upsample_bilinear2d.out", bilinear_out);
  library.impl("upsample_bilinear2d_backward", bilinear_backward);
  library.impl("upsample_bilinear2d_backward.grad_input", bilinear_backward_out);
}

}  // namespace tutti::kernels

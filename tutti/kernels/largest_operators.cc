// max_pool2d and its gradient.
#include <atomic>
#include <cstdint>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include <ATen/CPUFunctions.h>
#include <ATen/ops/empty.h>

#include "tutti/kernels/largest.h"
#include "tutti/kernels/operators.h"
#include "tutti/kernels/parallel.h"
#include "tutti/kernels/results.h"

namespace tutti::kernels {
namespace {

// The sizes of one dimension of windows.
struct WindowSide {
  WindowSide(size_t which, at::IntArrayRef kernels, at::IntArrayRef strides, at::IntArrayRef paddings,
             at::IntArrayRef dilations)
      : kernel(of(which, kernels, 0)),
        stride(strides.empty() ? kernel : of(which, strides, 0)),
        padding(of(which, paddings, -1)),
        dilation(of(which, dilations, 0)) {}

  // Returns the number of windows; 0 if LibTorch has to refuse the sizes, or there are none.
  int64_t windows(int64_t size, bool ceil_mode) const {
    if (kernel <= 0 || stride <= 0 || dilation <= 0 || padding < 0 || padding > kernel / 2) return 0;
    const int64_t room = size + 2 * padding - dilation * (kernel - 1) - 1 + (ceil_mode ? stride - 1 : 0);
    if (room < 0) return 0;
    const int64_t count = room / stride + 1;
    // The last window has to begin inside, or in the padding before.
    return ceil_mode && (count - 1) * stride >= size + padding ? count - 1 : count;
  }

  int64_t kernel;
  int64_t stride;
  int64_t padding;
  int64_t dilation;

 private:
  // Returns one of one or two sizes; `none` if there is another number of them.
  static int64_t of(size_t which, at::IntArrayRef sizes, int64_t none) {
    return sizes.size() == 1 || sizes.size() == 2 ? sizes[sizes.size() - 1 == 1 ? which : 0] : none;
  }
};

Windows windows_of(const at::Tensor& planes, at::IntArrayRef kernel, at::IntArrayRef stride,
                   at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode) {
  const WindowSide rows(0, kernel, stride, padding, dilation);
  const WindowSide columns(1, kernel, stride, padding, dilation);
  const int64_t height = planes.size(-2);
  const int64_t width = planes.size(-1);
  return {height,
          width,
          rows.kernel,
          columns.kernel,
          rows.stride,
          columns.stride,
          rows.padding,
          columns.padding,
          rows.dilation,
          columns.dilation,
          rows.windows(height, ceil_mode),
          columns.windows(width, ceil_mode)};
}

// LibTorch's kernel gives the same bits, but is slow for planes.
std::tuple<at::Tensor, at::Tensor> largest_of_windows(const at::Tensor& self, at::IntArrayRef kernel,
                                                      at::IntArrayRef stride, at::IntArrayRef padding,
                                                      at::IntArrayRef dilation, bool ceil_mode) {
  const auto of_libtorch = [&] {
    return at::cpu::max_pool2d_with_indices(self, kernel, stride, padding, dilation, ceil_mode);
  };
  const bool is_planes = (self.dim() == 3 || self.dim() == 4) && self.layout() == at::kStrided &&
                         self.scalar_type() == at::kFloat && self.numel() > 0 && self.is_contiguous() &&
                         self.suggest_memory_format() == at::MemoryFormat::Contiguous;
  if (!is_planes) return of_libtorch();
  const Windows windows = windows_of(self, kernel, stride, padding, dilation, ceil_mode);
  if (windows.rows == 0 || windows.columns == 0) return of_libtorch();
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes[sizes.size() - 2] = windows.rows;
  sizes[sizes.size() - 1] = windows.columns;
  at::Tensor values = at::empty(sizes, self.options());
  at::Tensor places = at::empty(sizes, self.options().dtype(at::kLong));
  const int64_t in_plane = windows.height * windows.width;
  const int64_t in_result = windows.rows * windows.columns;
  in_parallel(self.numel() / in_plane, in_result * windows.kernel_height * windows.kernel_width,
              [&](int64_t first, int64_t last) {
                find_largest(windows, self.data_ptr<float>() + first * in_plane, last - first,
                             values.data_ptr<float>() + first * in_result,
                             places.data_ptr<int64_t>() + first * in_result);
              });
  return {values, places};
}

std::tuple<at::Tensor&, at::Tensor&> write_largest_of_windows(const at::Tensor& self, at::IntArrayRef kernel,
                                                              at::IntArrayRef stride, at::IntArrayRef padding,
                                                              at::IntArrayRef dilation, bool ceil_mode,
                                                              at::Tensor& out, at::Tensor& indices) {
  const auto [values, places] = largest_of_windows(self, kernel, stride, padding, dilation, ceil_mode);
  write_result(values, out);
  write_result(places, indices);
  return std::tie(out, indices);
}

// Returns the gradient, or nothing if LibTorch's kernel is to compute it. That gives the same bits, but looks
// at one element after the other.
std::optional<at::Tensor> gradient_of_largest(const at::Tensor& gradient, const at::Tensor& self,
                                              const Windows& windows, const at::Tensor& places) {
  const at::MemoryFormat format = self.suggest_memory_format();
  const bool is_last = format == at::MemoryFormat::ChannelsLast;
  const int64_t channels = is_last ? self.size(1) : 1;
  const bool are_pairs = windows.kernel_width == 2 && windows.stride_width == 2 && windows.padding_width == 0;
  if (windows.rows == 0 || windows.columns == 0 || windows.dilation_height != 1 ||
      windows.dilation_width != 1 || (channels == 1 && !are_pairs) ||
      windows.height * windows.width > std::numeric_limits<int32_t>::max())
    return std::nullopt;
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes[sizes.size() - 2] = windows.rows;
  sizes[sizes.size() - 1] = windows.columns;
  if (gradient.sizes() != at::IntArrayRef(sizes) || places.sizes() != at::IntArrayRef(sizes) ||
      places.scalar_type() != at::kLong || gradient.scalar_type() != at::kFloat)
    return std::nullopt;
  const at::Tensor gradients = gradient.contiguous(format);
  const at::Tensor found_places = places.contiguous(format);
  at::Tensor out = at::empty(self.sizes(), self.options().memory_format(format));
  const LargestGradients all{windows, channels, gradients.data_ptr<float>(), found_places.data_ptr<int64_t>(),
                             out.data_ptr<float>()};
  const int64_t in_row = windows.width * channels;
  std::atomic<int64_t> found = 0;
  in_parallel(self.numel() / in_row, 4 * in_row,
              [&](int64_t first, int64_t end) { found += spread_gradients(all, first, end); });
  if (found != gradients.numel()) return std::nullopt;
  return out;
}

std::optional<at::Tensor> gradient_of_largest(const at::Tensor& gradient, const at::Tensor& self,
                                              at::IntArrayRef kernel, at::IntArrayRef stride,
                                              at::IntArrayRef padding, at::IntArrayRef dilation,
                                              bool ceil_mode, const at::Tensor& places) {
  const bool is_planes = (self.dim() == 3 || self.dim() == 4) && self.layout() == at::kStrided &&
                         self.scalar_type() == at::kFloat && self.numel() > 0;
  if (!is_planes) return std::nullopt;
  return gradient_of_largest(gradient, self, windows_of(self, kernel, stride, padding, dilation, ceil_mode),
                             places);
}

at::Tensor largest_backward(const at::Tensor& gradient, const at::Tensor& self, at::IntArrayRef kernel,
                            at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                            bool ceil_mode, const at::Tensor& places) {
  const auto ours = gradient_of_largest(gradient, self, kernel, stride, padding, dilation, ceil_mode, places);
  if (ours) return *ours;
  return at::cpu::max_pool2d_with_indices_backward(gradient, self, kernel, stride, padding, dilation,
                                                   ceil_mode, places);
}

at::Tensor& write_largest_backward(const at::Tensor& gradient, const at::Tensor& self, at::IntArrayRef kernel,
                                   at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                                   bool ceil_mode, const at::Tensor& places, at::Tensor& out) {
  const auto ours = gradient_of_largest(gradient, self, kernel, stride, padding, dilation, ceil_mode, places);
  if (ours) return write_result(*ours, out);
  return at::cpu::max_pool2d_with_indices_backward_out(out, gradient, self, kernel, stride, padding, dilation,
                                                       ceil_mode, places);
}

}  // namespace

void register_largest(Registrar& library) {
  library.impl("max_pool2d_with_indices", largest_of_windows);
  library.impl("max_pool2d_with_indices.out", write_largest_of_windows);
  library.impl("max_pool2d_with_indices_backward", largest_backward);
  library.impl("max_pool2d_with_indices_backward.grad_input", write_largest_backward);
}

}  // namespace tutti::kernels

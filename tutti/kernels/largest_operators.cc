// max_pool2d. Its gradient is exact and fast in LibTorch.
#include <cstdint>
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

}  // namespace

void register_largest(Registrar& library) {
  library.impl("max_pool2d_with_indices", largest_of_windows);
  library.impl("max_pool2d_with_indices.out", write_largest_of_windows);
}

}  // namespace tutti::kernels

// softmax and log_softmax. LibTorch makes cross_entropy of log_softmax and nll_loss.
#include <algorithm>

#include <ATen/ops/_log_softmax_backward_data_cpu_dispatch.h>
#include <ATen/ops/_log_softmax_cpu_dispatch.h>
#include <ATen/ops/_softmax_backward_data_cpu_dispatch.h>
#include <ATen/ops/_softmax_cpu_dispatch.h>
#include <ATen/ops/empty.h>

#include "tutti/kernels/operators.h"
#include "tutti/kernels/parallel.h"
#include "tutti/kernels/results.h"
#include "tutti/kernels/softmax.h"

namespace tutti::kernels {
namespace {

template <class T>
void apply_in_parallel(RowFunction function, const at::Tensor& first, const at::Tensor& second,
                       const at::Tensor& out) {
  const int64_t length = first.size(-1);
  const Rows<T> all{{first.data_ptr<T>(), second.defined() ? second.data_ptr<T>() : nullptr},
                    out.data_ptr<T>(),
                    out.numel() / length,
                    length};
  in_parallel(all.rows, 16 * length, [&](int64_t begin, int64_t end) {
    Rows<T> part = all;
    part.in[0] += begin * length;
    if (second.defined()) part.in[1] += begin * length;
    part.out += begin * length;
    part.rows = end - begin;
    apply(function, part);
  });
}

// Columns that are computed at once.
constexpr int64_t kColumns = 64;

// Applies a function to the columns of dimension `dim` of tensors that are contiguous.
template <class T>
void apply_to_columns(RowFunction function, int64_t dim, const at::Tensor& first, const at::Tensor& second,
                      const at::Tensor& out) {
  const int64_t length = out.size(dim);
  const int64_t width = out.stride(dim);
  const int64_t strips = (width + kColumns - 1) / kColumns;
  in_parallel(out.numel() / length / width * strips, 16 * length * kColumns, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t column = i % strips * kColumns;
      const int64_t at = i / strips * length * width + column;
      apply(function, SoftmaxColumns<T>{
                          {first.data_ptr<T>() + at, second.defined() ? second.data_ptr<T>() + at : nullptr},
                          out.data_ptr<T>() + at,
                          length,
                          width,
                          std::min(kColumns, width - column)});
    }
  });
}

// Returns true if dimension `dim` is to be computed as columns: if vectors of columns are worth it, and the
// elements of a row do not lie together.
bool are_columns(const at::Tensor& x, int64_t dim) {
  constexpr int64_t kWorthColumns = 8;
  if (x.numel() == 0 || dim == x.dim() - 1) return false;
  int64_t width = 1;
  for (int64_t i = dim + 1; i < x.dim(); ++i) width *= x.size(i);
  return width >= kWorthColumns && !x.movedim(dim, -1).is_contiguous();
}

// Applies a function to the rows of one dimension. If it is not the last one, and its columns are not
// computed as they lie, it is moved there and back.
at::Tensor applied(RowFunction function, int64_t of_dim, const at::Tensor& one,
                   const at::Tensor& other = {}) {
  const at::Tensor first = one.dim() == 0 ? one.unsqueeze(0) : one;
  const at::Tensor second = other.defined() && other.dim() == 0 ? other.unsqueeze(0) : other;
  const int64_t dim = of_dim < 0 ? of_dim + first.dim() : of_dim;
  const at::Tensor wide = widened(first);
  const bool columns = are_columns(wide, dim);
  const auto lying = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    return (columns ? widened(tensor) : widened(tensor).movedim(dim, -1)).contiguous();
  };
  const at::Tensor x = lying(wide);
  const at::Tensor y = lying(second);
  const at::Tensor out = at::empty(x.sizes(), x.options());
  const auto compute = [&](auto zero) {
    using T = decltype(zero);
    if (columns)
      apply_to_columns<T>(function, dim, x, y, out);
    else
      apply_in_parallel<T>(function, x, y, out);
  };
  if (out.numel() > 0) {
    if (x.scalar_type() == at::kFloat)
      compute(float());
    else
      compute(double());
  }
  const at::Tensor result = columns ? out : out.movedim(-1, dim).contiguous();
  return result.to(one.scalar_type()).view(one.sizes());
}

bool is_our_softmax(std::string_view name, int64_t dim, const at::Tensor& first,
                    const at::Tensor& second = {}) {
  const int64_t dims = std::max<int64_t>(1, first.dim());
  if (dim < -dims || dim >= dims) return false;
  if (second.defined() && (second.sizes() != first.sizes() || second.scalar_type() != first.scalar_type())) {
    not_covered(name, "its tensors have different types or sizes");
    return false;
  }
  return are_reduced(name, first, second);
}

// `input` is the type of the input of the forward pass.
bool is_our_gradient(std::string_view name, int64_t dim, const at::Tensor& gradient, const at::Tensor& result,
                     at::ScalarType input) {
  if (input == gradient.scalar_type()) return is_our_softmax(name, dim, gradient, result);
  not_covered(name, at::toString(input));
  return false;
}

at::Tensor softmax(const at::Tensor& self, int64_t dim, bool half_to_float) {
  if (half_to_float || !is_our_softmax("aten::_softmax", dim, self))
    return at::cpu::_softmax(self, dim, half_to_float);
  return applied(RowFunction::Softmax, dim, self);
}

at::Tensor& softmax_out(const at::Tensor& self, int64_t dim, bool half_to_float, at::Tensor& out) {
  if (half_to_float || !is_our_softmax("aten::_softmax.out", dim, self))
    return at::cpu::_softmax_out(out, self, dim, half_to_float);
  return write_result(applied(RowFunction::Softmax, dim, self), out);
}

at::Tensor log_softmax(const at::Tensor& self, int64_t dim, bool half_to_float) {
  if (half_to_float || !is_our_softmax("aten::_log_softmax", dim, self))
    return at::cpu::_log_softmax(self, dim, half_to_float);
  return applied(RowFunction::LogSoftmax, dim, self);
}

at::Tensor& log_softmax_out(const at::Tensor& self, int64_t dim, bool half_to_float, at::Tensor& out) {
  if (half_to_float || !is_our_softmax("aten::_log_softmax.out", dim, self))
    return at::cpu::_log_softmax_out(out, self, dim, half_to_float);
  return write_result(applied(RowFunction::LogSoftmax, dim, self), out);
}

at::Tensor softmax_backward(const at::Tensor& gradient, const at::Tensor& result, int64_t dim,
                            at::ScalarType input) {
  if (!is_our_gradient("aten::_softmax_backward_data", dim, gradient, result, input))
    return at::cpu::_softmax_backward_data(gradient, result, dim, input);
  return applied(RowFunction::SoftmaxBackward, dim, gradient, result);
}

at::Tensor& softmax_backward_out(const at::Tensor& gradient, const at::Tensor& result, int64_t dim,
                                 at::ScalarType input, at::Tensor& out) {
  if (!is_our_gradient("aten::_softmax_backward_data.out", dim, gradient, result, input))
    return at::cpu::_softmax_backward_data_out(out, gradient, result, dim, input);
  return write_result(applied(RowFunction::SoftmaxBackward, dim, gradient, result), out);
}

at::Tensor log_softmax_backward(const at::Tensor& gradient, const at::Tensor& result, int64_t dim,
                                at::ScalarType input) {
  if (!is_our_gradient("aten::_log_softmax_backward_data", dim, gradient, result, input))
    return at::cpu::_log_softmax_backward_data(gradient, result, dim, input);
  return applied(RowFunction::LogSoftmaxBackward, dim, gradient, result);
}

at::Tensor& log_softmax_backward_out(const at::Tensor& gradient, const at::Tensor& result, int64_t dim,
                                     at::ScalarType input, at::Tensor& out) {
  if (!is_our_gradient("aten::_log_softmax_backward_data.out", dim, gradient, result, input))
    return at::cpu::_log_softmax_backward_data_out(out, gradient, result, dim, input);
  return write_result(applied(RowFunction::LogSoftmaxBackward, dim, gradient, result), out);
}

}  // namespace

void register_softmax(Registrar& library) {
  library.impl("_softmax", softmax);
  library.impl("_softmax.out", softmax_out);
  library.impl("_log_softmax", log_softmax);
  library.impl("_log_softmax.out", log_softmax_out);
  library.impl("_softmax_backward_data", softmax_backward);
  library.impl("_softmax_backward_data.out", softmax_backward_out);
  library.impl("_log_softmax_backward_data", log_softmax_backward);
  library.impl("_log_softmax_backward_data.out", log_softmax_backward_out);
}

}  // namespace tutti::kernels

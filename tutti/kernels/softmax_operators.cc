// softmax, log_softmax and the negative log likelihood, which cross_entropy is made of.
#include <optional>
#include <tuple>
#include <vector>

#include <ATen/ops/_log_softmax_backward_data_cpu_dispatch.h>
#include <ATen/ops/_log_softmax_cpu_dispatch.h>
#include <ATen/ops/_softmax_backward_data_cpu_dispatch.h>
#include <ATen/ops/_softmax_cpu_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/nll_loss2d_forward_cpu_dispatch.h>
#include <ATen/ops/nll_loss_forward_cpu_dispatch.h>

#include "tutti/kernels/operators.h"
#include "tutti/kernels/parallel.h"
#include "tutti/kernels/results.h"
#include "tutti/kernels/softmax.h"
#include "tutti/kernels/tensor_sums.h"

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
  if (second.defined() && (second.sizes() != first.sizes() || second.scalar_type() != first.scalar_type()))
    return false;
  return are_reduced(name, first, second);
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
  if (input != gradient.scalar_type() ||
      !is_our_softmax("aten::_softmax_backward_data", dim, gradient, result))
    return at::cpu::_softmax_backward_data(gradient, result, dim, input);
  return applied(RowFunction::SoftmaxBackward, dim, gradient, result);
}

at::Tensor& softmax_backward_out(const at::Tensor& gradient, const at::Tensor& result, int64_t dim,
                                 at::ScalarType input, at::Tensor& out) {
  if (input != gradient.scalar_type() ||
      !is_our_softmax("aten::_softmax_backward_data.out", dim, gradient, result))
    return at::cpu::_softmax_backward_data_out(out, gradient, result, dim, input);
  return write_result(applied(RowFunction::SoftmaxBackward, dim, gradient, result), out);
}

at::Tensor log_softmax_backward(const at::Tensor& gradient, const at::Tensor& result, int64_t dim,
                                at::ScalarType input) {
  if (input != gradient.scalar_type() ||
      !is_our_softmax("aten::_log_softmax_backward_data", dim, gradient, result))
    return at::cpu::_log_softmax_backward_data(gradient, result, dim, input);
  return applied(RowFunction::LogSoftmaxBackward, dim, gradient, result);
}

at::Tensor& log_softmax_backward_out(const at::Tensor& gradient, const at::Tensor& result, int64_t dim,
                                     at::ScalarType input, at::Tensor& out) {
  if (input != gradient.scalar_type() ||
      !is_our_softmax("aten::_log_softmax_backward_data.out", dim, gradient, result))
    return at::cpu::_log_softmax_backward_data_out(out, gradient, result, dim, input);
  return write_result(applied(RowFunction::LogSoftmaxBackward, dim, gradient, result), out);
}

// The negative log likelihood. Its terms are products -weight * x, exact in doubles, whose sum is made in the
// order of sums.h, as is the sum of the weights.

constexpr int64_t kNone = 0;  // the reductions of LibTorch
constexpr int64_t kMean = 1;

// Class c of example i is at data[example(i) + c * step].
template <class T>
struct Likelihoods {
  const T* data;
  int64_t step;
  int64_t classes;
};

// Writes the terms and their weights. Returns false if a target is no class.
template <class T, class Place>
bool terms_of(const Likelihoods<T>& x, const at::Tensor& targets, const at::Tensor& weights, int64_t ignored,
              const Place& example, double* terms, double* of_weights) {
  const auto* const target = targets.data_ptr<int64_t>();
  const T* const weight = weights.defined() ? weights.data_ptr<T>() : nullptr;
  const int64_t count = targets.numel();
  for (int64_t i = 0; i < count; ++i) {
    terms[i] = 0;
    of_weights[i] = 0;
    if (target[i] == ignored) continue;
    if (target[i] < 0 || target[i] >= x.classes) return false;
    of_weights[i] = weight == nullptr ? 1 : weight[target[i]];
    terms[i] = -of_weights[i] * static_cast<double>(x.data[example(i) + target[i] * x.step]);
  }
  return true;
}

template <class T>
bool make_terms(const at::Tensor& x, const at::Tensor& target, const at::Tensor& weight, int64_t ignored,
                const at::Tensor& sums) {
  double* const terms = sums.data_ptr<double>();
  double* const weights = terms + target.numel();
  const Likelihoods<T> all{x.data_ptr<T>(), x.dim() == 1 ? x.stride(0) : x.stride(1),
                           x.dim() == 1 ? x.size(0) : x.size(1)};
  if (x.dim() < 3) {
    const int64_t row = x.dim() == 2 ? x.stride(0) : 0;
    const auto example = [row](int64_t i) { return i * row; };
    return terms_of(all, target, weight, ignored, example, terms, weights);
  }
  const int64_t width = x.size(3);
  const int64_t pixels = x.size(2) * width;
  const auto pixel = [pixels, width, image = x.stride(0), row = x.stride(2),
                      column = x.stride(3)](int64_t i) {
    return i / pixels * image + i % pixels / width * row + i % width * column;
  };
  return terms_of(all, target, weight, ignored, pixel, terms, weights);
}

// Returns the loss and the sum of the weights, or nothing if LibTorch's kernel is to compute it: if nothing
// is summed, which is exact, or to refuse wrong operands.
std::optional<std::tuple<at::Tensor, at::Tensor>> likelihood(std::string_view name, const at::Tensor& self,
                                                             const at::Tensor& target,
                                                             const c10::optional<at::Tensor>& class_weight,
                                                             int64_t reduction, int64_t ignored) {
  const at::Tensor weight = class_weight.value_or(at::Tensor());
  if (reduction == kNone || target.scalar_type() != at::kLong) return std::nullopt;
  std::vector<int64_t> examples = self.sizes().vec();
  const int64_t class_dim = self.dim() == 1 ? 0 : 1;
  if (self.dim() != 1 && self.dim() != 2 && self.dim() != 4) return std::nullopt;
  examples.erase(examples.begin() + class_dim);
  const bool one_target = self.dim() == 1 && target.dim() == 1 && target.numel() == 1;
  if ((target.sizes() != at::IntArrayRef(examples) && !one_target) ||
      (weight.defined() && (weight.dim() != 1 || weight.numel() != self.size(class_dim) ||
                            weight.scalar_type() != self.scalar_type())))
    return std::nullopt;
  if (!are_reduced(name, self, weight)) return std::nullopt;

  const at::Tensor x = widened(self);
  const at::Tensor weights = weight.defined() ? widened(weight).contiguous() : weight;
  const at::Tensor terms = at::empty({2, target.numel()}, x.options().dtype(at::kDouble));
  const at::Tensor targets = target.contiguous();
  if (!(x.scalar_type() == at::kFloat ? make_terms<float>(x, targets, weights, ignored, terms)
                                      : make_terms<double>(x, targets, weights, ignored, terms)))
    return std::nullopt;
  const at::Tensor sums = sums_over(terms, Dimensions(2), Terms::Elements);
  const double* const sum = sums.data_ptr<double>();
  const double loss = reduction == kMean ? sum[0] / sum[1] : sum[0];
  return std::tuple(at::empty({}, self.options()).fill_(loss), at::empty({}, self.options()).fill_(sum[1]));
}

std::tuple<at::Tensor, at::Tensor> nll_loss(const at::Tensor& self, const at::Tensor& target,
                                            const c10::optional<at::Tensor>& weight, int64_t reduction,
                                            int64_t ignored) {
  if (self.dim() < 3)
    if (auto ours = likelihood("aten::nll_loss_forward", self, target, weight, reduction, ignored))
      return *ours;
  return at::cpu::nll_loss_forward(self, target, weight, reduction, ignored);
}

std::tuple<at::Tensor&, at::Tensor&> nll_loss_out(const at::Tensor& self, const at::Tensor& target,
                                                  const c10::optional<at::Tensor>& weight, int64_t reduction,
                                                  int64_t ignored, at::Tensor& out, at::Tensor& total) {
  if (self.dim() < 3) {
    if (auto ours = likelihood("aten::nll_loss_forward.output", self, target, weight, reduction, ignored)) {
      write_result(std::get<0>(*ours), out);
      write_result(std::get<1>(*ours), total);
      return {out, total};
    }
  }
  return at::cpu::nll_loss_forward_out(out, total, self, target, weight, reduction, ignored);
}

std::tuple<at::Tensor, at::Tensor> nll_loss2d(const at::Tensor& self, const at::Tensor& target,
                                              const c10::optional<at::Tensor>& weight, int64_t reduction,
                                              int64_t ignored) {
  if (self.dim() == 4)
    if (auto ours = likelihood("aten::nll_loss2d_forward", self, target, weight, reduction, ignored))
      return *ours;
  return at::cpu::nll_loss2d_forward(self, target, weight, reduction, ignored);
}

std::tuple<at::Tensor&, at::Tensor&> nll_loss2d_out(const at::Tensor& self, const at::Tensor& target,
                                                    const c10::optional<at::Tensor>& weight,
                                                    int64_t reduction, int64_t ignored, at::Tensor& out,
                                                    at::Tensor& total) {
  if (self.dim() == 4) {
    if (auto ours = likelihood("aten::nll_loss2d_forward.output", self, target, weight, reduction, ignored)) {
      write_result(std::get<0>(*ours), out);
      write_result(std::get<1>(*ours), total);
      return {out, total};
    }
  }
  return at::cpu::nll_loss2d_forward_out(out, total, self, target, weight, reduction, ignored);
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
  library.impl("nll_loss_forward", nll_loss);
  library.impl("nll_loss_forward.output", nll_loss_out);
  library.impl("nll_loss2d_forward", nll_loss2d);
  library.impl("nll_loss2d_forward.output", nll_loss2d_out);
}

}  // namespace tutti::kernels

// sum, mean, nansum, var, std, var_mean, std_mean, norm, linalg_vector_norm, prod and their variants.
// LibTorch makes the other reductions of these: sum_to_size of sum, logsumexp of amax, exp, sum and log.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm_cpu_dispatch.h>
#include <ATen/ops/mean_cpu_dispatch.h>
#include <ATen/ops/nansum_cpu_dispatch.h>
#include <ATen/ops/norm_cpu_dispatch.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/prod_cpu_dispatch.h>
#include <ATen/ops/std_cpu_dispatch.h>
#include <ATen/ops/std_mean_cpu_dispatch.h>
#include <ATen/ops/sum_cpu_dispatch.h>
#include <ATen/ops/var_cpu_dispatch.h>
#include <ATen/ops/var_mean_cpu_dispatch.h>
#include <ATen/ops/var_ops.h>
#include <ATen/ops/where.h>

#include "tutti/kernels/operators.h"
#include "tutti/kernels/parallel.h"
#include "tutti/kernels/results.h"
#include "tutti/kernels/tensor_sums.h"

namespace tutti::kernels {
namespace {

using Type = c10::optional<at::ScalarType>;
using Bits = std::optional<Dimensions>;

// LibTorch 1.13 has integers for the correction.
template <class>
struct CorrectionOf;
template <class Correction>
struct CorrectionOf<at::Tensor(const at::Tensor&, at::OptionalIntArrayRef, Correction, bool)> {
  using type = Correction;
};
using Correction = CorrectionOf<at::_ops::var_correction::schema>::type;

double value_of(Correction correction) {
  return correction.has_value() ? at::Scalar(*correction).toDouble() : 1;
}

// Returns the dimensions of a list, or nullopt if it names a wrong one. No list, or an empty one, is all.
Bits dimensions_of(const at::Tensor& x, at::OptionalIntArrayRef list) {
  Dimensions dimensions;
  if (!list.has_value() || list->empty()) return dimensions.set();
  const int64_t count = std::max<int64_t>(1, x.dim());
  for (const int64_t each : *list) {
    if (each < -count || each >= count) return std::nullopt;
    const auto bit = static_cast<size_t>(each < 0 ? each + count : each);
    if (dimensions[bit]) return std::nullopt;
    dimensions.set(bit);
  }
  return dimensions;
}

// A result, which is made of sums by a function of their index.
struct Reduction {
  std::vector<int64_t> sizes;
  int64_t terms = 1;  // of each sum
};

Reduction reduction_of(const at::Tensor& x, Dimensions dimensions, bool keepdim) {
  Reduction result;
  for (int64_t i = 0; i < x.dim(); ++i) {
    const bool reduced = dimensions[static_cast<size_t>(i)];
    if (reduced) result.terms *= x.size(i);
    if (!reduced || keepdim) result.sizes.push_back(reduced ? 1 : x.size(i));
  }
  return result;
}

template <class Function>
at::Tensor tensor_of(const Reduction& reduction, const at::Tensor& x, at::ScalarType type,
                     const Function& function) {
  at::Tensor result = at::empty(reduction.sizes, x.options());
  in_parallel(result.numel(), 1, [&](int64_t first, int64_t last) {
    if (x.scalar_type() == at::kFloat) {
      float* const to = result.data_ptr<float>();
      for (int64_t i = first; i < last; ++i) to[i] = static_cast<float>(function(i));
    } else {
      double* const to = result.data_ptr<double>();
      for (int64_t i = first; i < last; ++i) to[i] = function(i);
    }
  });
  return type == x.scalar_type() ? result : result.to(type);
}

// Returns the sums in `type`, divided by the number of terms for a mean.
at::Tensor sum_of(const at::Tensor& self, Dimensions dimensions, bool keepdim, at::ScalarType type,
                  Terms terms, bool mean = false) {
  const at::Tensor x = widened(self.scalar_type() == type ? self : self.to(type));
  const Reduction reduction = reduction_of(x, dimensions, keepdim);
  const at::Tensor sums = sums_over(x, dimensions, terms);
  const double* const sum = sums.data_ptr<double>();
  const auto count = static_cast<double>(reduction.terms);
  if (mean) return tensor_of(reduction, x, type, [&](int64_t i) { return sum[i] / count; });
  return tensor_of(reduction, x, type, [&](int64_t i) { return sum[i]; });
}

// Returns the type of a result if it is one that is reduced, and the dimensions are right.
struct Request {
  Dimensions dimensions;
  at::ScalarType type;
};

std::optional<Request> request_of(std::string_view name, const at::Tensor& self, at::OptionalIntArrayRef dims,
                                  Type dtype, const at::Tensor& out = {}) {
  const Bits dimensions = dimensions_of(self, dims);
  const at::ScalarType type = dtype.value_or(out.defined() ? out.scalar_type() : self.scalar_type());
  if (!dimensions || (out.defined() && out.scalar_type() != type)) return std::nullopt;
  const bool known = is_reduced_type(self.scalar_type()) || at::isIntegralType(self.scalar_type(), true);
  if (self.layout() == at::kStrided && known && is_reduced_type(type)) return Request{*dimensions, type};
  if (!at::isIntegralType(type, true))
    not_covered(name, self.layout() == at::kStrided ? at::toString(self.scalar_type()) : "sparse tensors");
  return std::nullopt;
}

at::Tensor sum(const at::Tensor& self, at::OptionalIntArrayRef dims, bool keepdim, Type dtype) {
  const auto ours = request_of("aten::sum.dim_IntList", self, dims, dtype);
  if (!ours) return at::cpu::sum(self, dims, keepdim, dtype);
  return sum_of(self, ours->dimensions, keepdim, ours->type, Terms::Elements);
}

at::Tensor& sum_out(const at::Tensor& self, at::OptionalIntArrayRef dims, bool keepdim, Type dtype,
                    at::Tensor& out) {
  const auto ours = request_of("aten::sum.IntList_out", self, dims, dtype, out);
  if (!ours) return at::cpu::sum_out(out, self, dims, keepdim, dtype);
  return write_result(sum_of(self, ours->dimensions, keepdim, ours->type, Terms::Elements), out);
}

at::Tensor mean(const at::Tensor& self, at::OptionalIntArrayRef dims, bool keepdim, Type dtype) {
  const auto ours = request_of("aten::mean.dim", self, dims, dtype);
  if (!ours) return at::cpu::mean(self, dims, keepdim, dtype);
  return sum_of(self, ours->dimensions, keepdim, ours->type, Terms::Elements, /*mean=*/true);
}

at::Tensor& mean_out(const at::Tensor& self, at::OptionalIntArrayRef dims, bool keepdim, Type dtype,
                     at::Tensor& out) {
  const auto ours = request_of("aten::mean.out", self, dims, dtype, out);
  if (!ours) return at::cpu::mean_out(out, self, dims, keepdim, dtype);
  return write_result(sum_of(self, ours->dimensions, keepdim, ours->type, Terms::Elements, /*mean=*/true),
                      out);
}

at::Tensor nansum_of(const at::Tensor& self, const Request& ours, bool keepdim) {
  const at::Tensor numbers = at::where(self.isnan(), 0, self).to(self.scalar_type());
  return sum_of(numbers, ours.dimensions, keepdim, ours.type, Terms::Elements);
}

at::Tensor nansum(const at::Tensor& self, at::OptionalIntArrayRef dims, bool keepdim, Type dtype) {
  const auto ours = request_of("aten::nansum", self, dims, dtype);
  if (!ours) return at::cpu::nansum(self, dims, keepdim, dtype);
  return nansum_of(self, *ours, keepdim);
}

at::Tensor& nansum_out(const at::Tensor& self, at::OptionalIntArrayRef dims, bool keepdim, Type dtype,
                       at::Tensor& out) {
  const auto ours = request_of("aten::nansum.out", self, dims, dtype, out);
  if (!ours) return at::cpu::nansum_out(out, self, dims, keepdim, dtype);
  return write_result(nansum_of(self, *ours, keepdim), out);
}

at::Tensor prod(const at::Tensor& self, Type dtype) {
  const auto ours = request_of("aten::prod", self, {}, dtype);
  if (!ours) return at::cpu::prod(self, dtype);
  return sum_of(self, ours->dimensions, false, ours->type, Terms::Factors);
}

at::Tensor prod_dim(const at::Tensor& self, int64_t dim, bool keepdim, Type dtype) {
  const auto ours = request_of("aten::prod.dim_int", self, dim, dtype);
  if (!ours) return at::cpu::prod(self, dim, keepdim, dtype);
  return sum_of(self, ours->dimensions, keepdim, ours->type, Terms::Factors);
}

at::Tensor& prod_out(const at::Tensor& self, int64_t dim, bool keepdim, Type dtype, at::Tensor& out) {
  const auto ours = request_of("aten::prod.int_out", self, dim, dtype, out);
  if (!ours) return at::cpu::prod_out(out, self, dim, keepdim, dtype);
  return write_result(sum_of(self, ours->dimensions, keepdim, ours->type, Terms::Factors), out);
}

// The variance and the mean. With y = x - x(0), the variance is (sum(y * y) - sum(y) * mean(y)) / (n - c),
// and the mean x(0) + mean(y), all in doubles.
struct Spread {
  at::Tensor variance;  // or the standard deviation
  at::Tensor mean;
};

enum class Wanted { Variance, Deviation };

Spread spread_of(const at::Tensor& self, const Request& ours, bool keepdim, double correction,
                 Wanted wanted) {
  const at::Tensor x = widened(self);
  const Reduction reduction = reduction_of(x, ours.dimensions, keepdim);
  const auto terms = static_cast<double>(reduction.terms);
  if (x.numel() == 0) {
    const auto none = [](int64_t) { return std::numeric_limits<double>::quiet_NaN(); };
    return {tensor_of(reduction, x, ours.type, none), tensor_of(reduction, x, ours.type, none)};
  }
  const at::Tensor shift = first_elements(x, ours.dimensions);
  const at::Tensor sums = sums_over(x, ours.dimensions, Terms::Moments, shift);
  const double* const first = shift.data_ptr<double>();
  const double* const sum = sums.data_ptr<double>();
  const double* const squares = sum + shift.numel();
  const auto variance = [&](int64_t i) {
    const double of_mean = sum[i] * (sum[i] / terms);
    const double rest = squares[i] < of_mean ? 0 : squares[i] - of_mean;
    return rest / std::max(0.0, terms - correction);
  };
  return {wanted == Wanted::Variance
              ? tensor_of(reduction, x, ours.type, variance)
              : tensor_of(reduction, x, ours.type, [&](int64_t i) { return std::sqrt(variance(i)); }),
          tensor_of(reduction, x, ours.type, [&](int64_t i) { return first[i] + sum[i] / terms; })};
}

at::Tensor var(const at::Tensor& self, at::OptionalIntArrayRef dims, Correction correction, bool keepdim) {
  const auto ours = request_of("aten::var.correction", self, dims, {});
  if (!ours) return at::cpu::var(self, dims, correction, keepdim);
  return spread_of(self, *ours, keepdim, value_of(correction), Wanted::Variance).variance;
}

at::Tensor& var_out(const at::Tensor& self, at::OptionalIntArrayRef dims, Correction correction, bool keepdim,
                    at::Tensor& out) {
  const auto ours = request_of("aten::var.correction_out", self, dims, self.scalar_type(), out);
  if (!ours) return at::cpu::var_out(out, self, dims, correction, keepdim);
  return write_result(spread_of(self, *ours, keepdim, value_of(correction), Wanted::Variance).variance, out);
}

at::Tensor std_of(const at::Tensor& self, at::OptionalIntArrayRef dims, Correction correction, bool keepdim) {
  const auto ours = request_of("aten::std.correction", self, dims, {});
  if (!ours) return at::cpu::std(self, dims, correction, keepdim);
  return spread_of(self, *ours, keepdim, value_of(correction), Wanted::Deviation).variance;
}

at::Tensor& std_out(const at::Tensor& self, at::OptionalIntArrayRef dims, Correction correction, bool keepdim,
                    at::Tensor& out) {
  const auto ours = request_of("aten::std.correction_out", self, dims, self.scalar_type(), out);
  if (!ours) return at::cpu::std_out(out, self, dims, correction, keepdim);
  return write_result(spread_of(self, *ours, keepdim, value_of(correction), Wanted::Deviation).variance, out);
}

std::tuple<at::Tensor, at::Tensor> var_mean(const at::Tensor& self, at::OptionalIntArrayRef dims,
                                            Correction correction, bool keepdim) {
  const auto ours = request_of("aten::var_mean.correction", self, dims, {});
  if (!ours) return at::cpu::var_mean(self, dims, correction, keepdim);
  const Spread spread = spread_of(self, *ours, keepdim, value_of(correction), Wanted::Variance);
  return {spread.variance, spread.mean};
}

std::tuple<at::Tensor, at::Tensor> std_mean(const at::Tensor& self, at::OptionalIntArrayRef dims,
                                            Correction correction, bool keepdim) {
  const auto ours = request_of("aten::std_mean.correction", self, dims, {});
  if (!ours) return at::cpu::std_mean(self, dims, correction, keepdim);
  const Spread spread = spread_of(self, *ours, keepdim, value_of(correction), Wanted::Deviation);
  return {spread.variance, spread.mean};
}

// The norm of order 2 is one sum; others are sums of what operators on single elements make.
at::Tensor norm_of(const at::Tensor& self, const Request& ours, double order, bool keepdim) {
  const at::Tensor x = widened(self.scalar_type() == ours.type ? self : self.to(ours.type));
  if (order == 2) {
    const at::Tensor sums = sums_over(x, ours.dimensions, Terms::Squares);
    const double* const sum = sums.data_ptr<double>();
    return tensor_of(reduction_of(x, ours.dimensions, keepdim), x, ours.type,
                     [&](int64_t i) { return std::sqrt(sum[i]); });
  }
  const at::Tensor terms =
      order == 0 ? x.ne(0).to(x.scalar_type()) : (order == 1 ? x.abs() : at::pow(x.abs(), order));
  const at::Tensor sum = sum_of(terms, ours.dimensions, keepdim, x.scalar_type(), Terms::Elements);
  const at::Tensor norm = order == 0 || order == 1 ? sum : at::pow(sum, 1 / order);
  return norm.to(ours.type);
}

// Norms of infinite order are maxima, which are exact.
bool is_finite(const at::Scalar& order) { return std::isfinite(order.toDouble()); }

at::Tensor vector_norm(const at::Tensor& self, const at::Scalar& order, at::OptionalIntArrayRef dims,
                       bool keepdim, Type dtype) {
  if (!is_finite(order)) return at::cpu::linalg_vector_norm(self, order, dims, keepdim, dtype);
  const auto ours = request_of("aten::linalg_vector_norm", self, dims, dtype);
  if (!ours || !at::isFloatingType(self.scalar_type()))
    return at::cpu::linalg_vector_norm(self, order, dims, keepdim, dtype);
  return norm_of(self, *ours, order.toDouble(), keepdim);
}

at::Tensor& vector_norm_out(const at::Tensor& self, const at::Scalar& order, at::OptionalIntArrayRef dims,
                            bool keepdim, Type dtype, at::Tensor& out) {
  if (!is_finite(order)) return at::cpu::linalg_vector_norm_out(out, self, order, dims, keepdim, dtype);
  const auto ours = request_of("aten::linalg_vector_norm.out", self, dims, dtype, out);
  if (!ours || !at::isFloatingType(self.scalar_type()))
    return at::cpu::linalg_vector_norm_out(out, self, order, dims, keepdim, dtype);
  return write_result(norm_of(self, *ours, order.toDouble(), keepdim), out);
}

at::Scalar order_of(const c10::optional<at::Scalar>& order) { return order.value_or(at::Scalar(2)); }

at::Tensor norm(const at::Tensor& self, const c10::optional<at::Scalar>& order, at::IntArrayRef dims,
                bool keepdim) {
  return vector_norm(self, order_of(order), dims, keepdim, {});
}

at::Tensor norm_typed(const at::Tensor& self, const c10::optional<at::Scalar>& order, at::IntArrayRef dims,
                      bool keepdim, at::ScalarType type) {
  return vector_norm(self, order_of(order), dims, keepdim, type);
}

at::Tensor& norm_out(const at::Tensor& self, const c10::optional<at::Scalar>& order, at::IntArrayRef dims,
                     bool keepdim, at::Tensor& out) {
  return vector_norm_out(self, order_of(order), dims, keepdim, {}, out);
}

at::Tensor& norm_typed_out(const at::Tensor& self, const c10::optional<at::Scalar>& order,
                           at::IntArrayRef dims, bool keepdim, at::ScalarType type, at::Tensor& out) {
  return vector_norm_out(self, order_of(order), dims, keepdim, type, out);
}

}  // namespace

void register_reductions(Registrar& library) {
  library.impl("sum.dim_IntList", sum);
  library.impl("sum.IntList_out", sum_out);
  library.impl("mean.dim", mean);
  library.impl("mean.out", mean_out);
  library.impl("nansum", nansum);
  library.impl("nansum.out", nansum_out);
  library.impl("prod", prod);
  library.impl("prod.dim_int", prod_dim);
  library.impl("prod.int_out", prod_out);
  library.impl("var.correction", var);
  library.impl("var.correction_out", var_out);
  library.impl("std.correction", std_of);
  library.impl("std.correction_out", std_out);
  library.impl("var_mean.correction", var_mean);
  library.impl("std_mean.correction", std_mean);
  library.impl("linalg_vector_norm", vector_norm);
  library.impl("linalg_vector_norm.out", vector_norm_out);
  library.impl("norm.ScalarOpt_dim", norm);
  library.impl("norm.ScalarOpt_dim_dtype", norm_typed);
  library.impl("norm.out", norm_out);
  library.impl("norm.dtype_out", norm_typed_out);
}

}  // namespace tutti::kernels

#pragma once

#include <cmath>
#include <cstdint>
#include <tuple>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "tutti/kernels/normalisations.h"
#include "tutti/kernels/tensor_sums.h"

namespace tutti::kernels {

// The parts that the operators of batch, group and layer normalisation share.
using Optional = c10::optional<at::Tensor>;
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

inline at::Tensor given(const Optional& tensor) { return tensor.has_value() ? *tensor : at::Tensor(); }

// Returns the type of means and scales: the type of the weight, which may be wider than x, or else of x.
inline at::ScalarType statistics_type(const at::Tensor& x, const at::Tensor& weight) {
  return weight.defined() ? weight.scalar_type() : x.scalar_type();
}

template <class Function>
void by_type(const at::Tensor& x, const Function& function) {
  if (x.scalar_type() == at::kFloat) return function(float());
  function(double());
}

// Returns a tensor as doubles that lie one after the other, or `count` times `otherwise` for an undefined
// one.
at::Tensor as_doubles(const at::Tensor& tensor, int64_t count, double otherwise);

// Values of rows or columns, each in the type of x, that are computed in doubles.
class Values {
 public:
  Values(const at::Tensor& x, int64_t kinds, int64_t count)
      : all_(at::empty({kinds, count}, x.options())),
        count_(count),
        floats_(x.scalar_type() == at::kFloat ? all_.data_ptr<float>() : nullptr),
        doubles_(x.scalar_type() == at::kDouble ? all_.data_ptr<double>() : nullptr) {}

  void set(int64_t kind, int64_t i, double value) {
    const int64_t at = kind * count_ + i;
    if (floats_ != nullptr)
      floats_[at] = static_cast<float>(value);
    else
      doubles_[at] = value;
  }
  template <class T>
  const T* of(int64_t kind) const {
    return kind < all_.size(0) ? all_.data_ptr<T>() + kind * count_ : nullptr;
  }
  int64_t count() const { return count_; }

 private:
  at::Tensor all_;
  int64_t count_;
  float* floats_;
  double* doubles_;
};

// The operands of apply() for all of x, for values of rows of `length` elements, or of columns.
template <class T>
ScaledRows<T> scaled_rows(const at::Tensor& x, const at::Tensor& gradient, const at::Tensor& out,
                          const Values& values, int64_t length, bool of_rows) {
  return {x.data_ptr<T>(),
          gradient.defined() ? gradient.data_ptr<T>() : nullptr,
          out.data_ptr<T>(),
          0,
          x.numel() / length,
          length,
          length,
          {values.of<T>(0), values.of<T>(1), values.of<T>(2), values.of<T>(3)},
          values.count(),
          of_rows};
}

// Applies the values to all of x.
at::Tensor apply_values(Normalisation normalisation, const at::Tensor& x, const at::Tensor& gradient,
                        const Values& values, int64_t length, bool of_rows);

// The means and variances of channels, as doubles.
struct Statistics {
  at::Tensor mean;
  at::Tensor variance;
};

// Returns those of sums over `dimensions`, of `count` elements each.
Statistics statistics_of(const at::Tensor& x, Dimensions dimensions, int64_t count);

// The mean and the variance of `count` elements with these sums of Terms::Moments.
struct Moments {
  Moments(double shift, double sum, double of_squares, int64_t count)
      : mean(shift + sum / static_cast<double>(count)) {
    const auto terms = static_cast<double>(count);
    const double rest = of_squares - sum * (sum / terms);
    variance = rest < 0 ? 0 : rest / terms;
  }

  double mean;
  double variance;
};

inline double scale_of(double variance, double eps) { return 1 / std::sqrt(variance + eps); }

}  // namespace tutti::kernels

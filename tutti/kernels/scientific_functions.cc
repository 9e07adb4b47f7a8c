#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tutti/kernels/scientific_functions.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "tutti/kernels/angles-inl.h"
#include "tutti/kernels/elements-inl.h"
#include "tutti/kernels/functions.h"
#include "tutti/kernels/powers-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

// Rounds to floats. Highway's targets without vectors make the largest float of a larger double.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void store_as_floats([[maybe_unused]] D d, V x, float* out) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
  HWY_ALIGN double all[kLanes<double>];
  hn::Store(x, d, all);
  for (int64_t i = 0; i < kLanes<double>; ++i) out[i] = static_cast<float>(all[i]);
#else
  const hn::Rebind<float, D> stored;
  hn::StoreU(hn::DemoteTo(stored, x), stored, out);
#endif
}

// Computes function(d, x) in doubles, whatever the type of the elements.
template <int kOperands, class T, class F>
HWY_INLINE void for_each_in_doubles(const Elements<T>& elements, const F& function) {
  const Tag<double> d;
  const hn::Rebind<T, Tag<double>> stored;
  by_vectors<kOperands>(elements, 0, kLanes<double>, [&](const T* const* in, T* out, int64_t i) HWY_ATTR {
    Vector<double> x[kOperands];
    if constexpr (sizeof(T) == sizeof(double)) {
      for (int k = 0; k < kOperands; ++k) x[k] = hn::LoadU(d, in[k] + i);
      hn::StoreU(with_one_nan(d, function(d, x)), d, out + i);
    } else {
      for (int k = 0; k < kOperands; ++k) x[k] = hn::PromoteTo(d, hn::LoadU(stored, in[k] + i));
      store_as_floats(d, with_one_nan(d, function(d, x)), out + i);
    }
  });
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V xlogy_of(D d, V x, V y) {
  const V product = hn::Mul(x, Log::any(d, y));
  const auto is_zero = hn::And(hn::Eq(x, hn::Zero(d)), hn::Eq(y, y));
  return hn::IfThenElse(is_zero, hn::Zero(d), product);
}

template <class T>
HWY_INLINE void apply_any(Function function, const Elements<T>& elements, const double* parameters) {
  const auto of_one = [&](const auto& of) HWY_ATTR {
    for_each_in_doubles<1>(elements, [&](auto d, const auto* x) HWY_ATTR { return of(d, x[0]); });
  };
  const auto of_two = [&](const auto& of) HWY_ATTR {
    for_each_in_doubles<2>(elements, [&](auto d, const auto* x) HWY_ATTR { return of(d, x[0], x[1]); });
  };
  switch (function) {
    case Function::Rsqrt:
      return of_one([](auto d, auto x) HWY_ATTR { return hn::Div(set(d, 1), hn::Sqrt(x)); });
    case Function::Sqrt:
      return for_each<1>(elements, [](auto, const auto* x) HWY_ATTR { return hn::Sqrt(x[0]); });
    case Function::Exp2:  // in the type of the elements
      return for_each<1>(elements, [](auto d, const auto* x) HWY_ATTR { return exp2_of(d, x[0]); });
    case Function::Log2:
      return of_one([](auto d, auto x) HWY_ATTR { return log_by<T>(d, x, Constants::kOneOverLog2); });
    case Function::Log10:
      return of_one([](auto d, auto x) HWY_ATTR { return log_by<T>(d, x, Constants::kOneOverLog10); });
    case Function::Pow:
      return of_two([](auto d, auto x, auto y) HWY_ATTR { return pow_of<T>(d, x, y); });
    case Function::PowScalar: {
      const double exponent = static_cast<T>(parameters[0]);
      return of_one([&](auto d, auto x) HWY_ATTR { return pow_of<T>(d, x, set(d, exponent)); });
    }
    case Function::Sin:
      return of_one([](auto d, auto x) HWY_ATTR { return sin_of(d, x); });
    case Function::Cos:
      return of_one([](auto d, auto x) HWY_ATTR { return cos_of(d, x); });
    case Function::Tan:
      return of_one([](auto d, auto x) HWY_ATTR { return tan_of(d, x); });
    case Function::Asin:
      return of_one([](auto d, auto x) HWY_ATTR { return asin_of(d, x); });
    case Function::Acos:
      return of_one([](auto d, auto x) HWY_ATTR { return acos_of(d, x); });
    case Function::Atan:
      return of_one([](auto d, auto x) HWY_ATTR { return atan_of(d, x); });
    case Function::Atan2:
      return of_two([](auto d, auto y, auto x) HWY_ATTR { return atan2_of(d, y, x); });
    case Function::Sinh:
      return of_one([](auto d, auto x) HWY_ATTR { return sinh_of(d, x); });
    case Function::Cosh:
      return of_one([](auto d, auto x) HWY_ATTR { return cosh_of(d, x); });
    case Function::Asinh:
      return of_one([](auto d, auto x) HWY_ATTR { return asinh_of(d, x); });
    case Function::Acosh:
      return of_one([](auto d, auto x) HWY_ATTR { return acosh_of(d, x); });
    case Function::Atanh:
      return of_one([](auto d, auto x) HWY_ATTR { return atanh_of(d, x); });
    case Function::Erfc:
      return of_one([](auto d, auto x) HWY_ATTR { return erfc_of(d, x); });
    case Function::Erfinv:
      return of_one([](auto d, auto x) HWY_ATTR { return erfinv_of(d, x); });
    case Function::Hypot:
      return of_two([](auto d, auto x, auto y) HWY_ATTR { return hypot_of(d, x, y); });
    case Function::Xlogy:
      return of_two([](auto d, auto x, auto y) HWY_ATTR { return xlogy_of(d, x, y); });
    default:
      return;
  }
}

void ScientificFloats(Function function, const Elements<float>& elements, const double* parameters) {
  apply_any(function, elements, parameters);
}
void ScientificDoubles(Function function, const Elements<double>& elements, const double* parameters) {
  apply_any(function, elements, parameters);
}

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tutti::kernels {

HWY_EXPORT(ScientificFloats);
HWY_EXPORT(ScientificDoubles);

void apply_scientific(Function function, const Elements<float>& elements, const double* parameters) {
  HWY_DYNAMIC_DISPATCH(ScientificFloats)(function, elements, parameters);
}

void apply_scientific(Function function, const Elements<double>& elements, const double* parameters) {
  HWY_DYNAMIC_DISPATCH(ScientificDoubles)(function, elements, parameters);
}

}  // namespace tutti::kernels
#endif

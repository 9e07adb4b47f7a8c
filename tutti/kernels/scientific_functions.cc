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
    case Function::Exp2:
      return for_each<1>(elements, [](auto d, const auto* x) HWY_ATTR { return exp2_of(d, x[0]); });
    case Function::Log2:
      if constexpr (kIsFloat<T>) return for_each_of<1, OfOne<LogBy<2>>>(elements);
      return of_one([](auto d, auto x) HWY_ATTR { return log_by(d, x, OfDouble::kOneOverLog2); });
    case Function::Log10:
      if constexpr (kIsFloat<T>) return for_each_of<1, OfOne<LogBy<10>>>(elements);
      return of_one([](auto d, auto x) HWY_ATTR { return log_by(d, x, OfDouble::kOneOverLog10); });
    case Function::Pow:
      return of_two([](auto d, auto x, auto y) HWY_ATTR { return pow_of<T>(d, x, y); });
    case Function::PowScalar: {
      const double exponent = static_cast<T>(parameters[0]);
      return of_one([&](auto d, auto x) HWY_ATTR { return pow_of<T>(d, x, set(d, exponent)); });
    }
    case Function::Sin:
      return for_each_of<1, OfOne<Sin>>(elements);
    case Function::Cos:
      return for_each_of<1, OfOne<Cos>>(elements);
    case Function::Tan:
      return for_each_of<1, OfOne<Tan>>(elements);
    case Function::Asin:
      return for_each<1>(elements, [](auto d, const auto* x) HWY_ATTR { return asin_of(d, x[0]); });
    case Function::Acos:
      return for_each<1>(elements, [](auto d, const auto* x) HWY_ATTR { return acos_of(d, x[0]); });
    case Function::Atan:
      return for_each<1>(elements, [](auto d, const auto* x) HWY_ATTR { return atan_of(d, x[0]); });
    case Function::Atan2:
      return for_each<2>(elements, [](auto d, const auto* x) HWY_ATTR { return atan2_of(d, x[0], x[1]); });
    case Function::Sinh:
      return of_one([](auto d, auto x) HWY_ATTR { return sinh_of(d, x); });
    case Function::Cosh:
      return of_one([](auto d, auto x) HWY_ATTR { return cosh_of(d, x); });
    case Function::Asinh:
      return of_one([](auto d, auto x) HWY_ATTR { return asinh_of(d, x); });
    case Function::Acosh:
      return of_one([](auto d, auto x) HWY_ATTR { return acosh_of(d, x); });
    case Function::Atanh:
      return for_each<1>(elements, [](auto d, const auto* x) HWY_ATTR { return atanh_of(d, x[0]); });
    case Function::Erfc:
      return for_each<1>(elements, [](auto d, const auto* x) HWY_ATTR { return erfc_of(d, x[0]); });
    case Function::Erfinv:
      return of_one([](auto d, auto x) HWY_ATTR { return erfinv_of<T>(d, x); });
    case Function::Hypot:
      return of_two([](auto d, auto x, auto y) HWY_ATTR { return hypot_of<T>(d, x, y); });
    case Function::Xlogy:
      return of_two([](auto d, auto x, auto y) HWY_ATTR { return xlogy_of(d, x, y); });
    default:
      return;
  }
}

void scientific_functions_of_floats(Function function, const Elements<float>& elements,
                                    const double* parameters) {
  apply_any(function, elements, parameters);
}
void scientific_functions_of_doubles(Function function, const Elements<double>& elements,
                                     const double* parameters) {
  apply_any(function, elements, parameters);
}

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tutti::kernels {

HWY_EXPORT(scientific_functions_of_floats);
HWY_EXPORT(scientific_functions_of_doubles);

void apply_scientific(Function function, const Elements<float>& elements, const double* parameters) {
  HWY_DYNAMIC_DISPATCH(scientific_functions_of_floats)(function, elements, parameters);
}

void apply_scientific(Function function, const Elements<double>& elements, const double* parameters) {
  HWY_DYNAMIC_DISPATCH(scientific_functions_of_doubles)(function, elements, parameters);
}

}  // namespace tutti::kernels
#endif

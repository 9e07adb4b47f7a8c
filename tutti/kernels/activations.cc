// Functions with parameters or of several operands. The gradients' first operand, x[0], is the gradient of
// the result.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tutti/kernels/activations.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "tutti/kernels/elements-inl.h"
#include "tutti/kernels/functions-inl.h"
#include "tutti/kernels/functions.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

// log(1 + exp(x))
template <class D, class V = hn::Vec<D>>
HWY_INLINE V softplus_of(D d, V x) {
  const V log = Log1p::plain(d, by_need<Exp>(d, hn::Neg(hn::Abs(x))));
  return hn::Add(at_least(d, x, 0), log);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V logaddexp_of(D d, V x, V y) {
  const V more = hn::IfThenElse(hn::Gt(y, x), y, x);
  const V difference = hn::IfThenElse(hn::Eq(x, y), hn::Zero(d), hn::Neg(hn::Abs(hn::Sub(x, y))));
  return hn::Add(more, Log1p::plain(d, by_need<Exp>(d, difference)));
}

// x tanh(log(1 + exp(x))) = x n / (n + 2) with n = e (e + 2) and e = exp(x)
template <class D, class V = hn::Vec<D>>
HWY_INLINE V mish_of(D d, V x) {
  const V two = set(d, 2);
  const V e = by_need<Exp>(d, at_most(d, x, 40));
  const V n = hn::Mul(e, hn::Add(e, two));
  return hn::Mul(x, hn::Mul(n, reciprocal(d, hn::Add(n, two))));
}

// tanh(log(1 + e)) + x sigmoid(x) (1 - tanh(log(1 + e))^2) = n w + 4 x e (1 + e) w^2 with w = 1 / (n + 2)
template <class D, class V = hn::Vec<D>>
HWY_INLINE V mish_slope(D d, V x) {
  const V two = set(d, 2);
  const V within = at_most(d, x, 40);
  const V e = by_need<Exp>(d, within);
  const V n = hn::Mul(e, hn::Add(e, two));
  const V w = reciprocal(d, hn::Add(n, two));
  const V curve = hn::Mul(hn::Mul(hn::Mul(fused(d, e, e, e), set(d, 4)), w), w);
  return fused(d, within, curve, hn::Mul(n, w));
}

// The larger one of a logarithm and -100, as LibTorch has it in the binary cross entropy.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V binary_cross_entropy_of(D d, V x, V target) {
  const V log = at_least(d, by_need<Log>(d, x), -100);
  const V log_of_rest = at_least(d, by_need<Log1p>(d, hn::Neg(x)), -100);
  return fused(d, hn::Sub(target, set(d, 1)), log_of_rest, hn::Neg(hn::Mul(target, log)));
}

// start + weight (end - start), from the nearer one of both ends.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V lerp_of(D d, V start, V end, V weight) {
  const V difference = hn::Sub(end, start);
  const V far = fused(d, hn::Sub(weight, set(d, 1)), difference, end);
  return hn::IfThenElse(hn::Lt(hn::Abs(weight), set(d, 0.5)), fused(d, weight, difference, start), far);
}

template <class T>
HWY_INLINE void apply_any(Function function, const Elements<T>& elements, const double* parameters) {
  const Tag<T> d;
  Vector<T> p[4];
  for (int i = 0; i < 4; ++i) p[i] = set(d, parameters[i]);
  const auto one = set(d, 1);
  const auto zero = hn::Zero(d);
  switch (function) {
    case Function::Softplus:  // beta, threshold
      return for_each<1>(elements, [&](auto, const auto* x) HWY_ATTR {
        const auto scaled = hn::Mul(x[0], p[0]);
        return hn::IfThenElse(hn::Gt(scaled, p[1]), x[0], hn::Div(softplus_of(d, scaled), p[0]));
      });
    case Function::SoftplusBackward:  // beta, threshold
      return for_each<2>(elements, [&](auto, const auto* x) HWY_ATTR {
        const auto scaled = hn::Mul(x[1], p[0]);
        return hn::IfThenElse(hn::Gt(scaled, p[1]), x[0], hn::Mul(x[0], by_need<Sigmoid>(d, scaled)));
      });
    case Function::Mish:
      return for_each<1>(elements, [&](auto, const auto* x) HWY_ATTR { return mish_of(d, x[0]); });
    case Function::MishBackward:
      return for_each<2>(elements,
                         [&](auto, const auto* x) HWY_ATTR { return hn::Mul(x[0], mish_slope(d, x[1])); });
    case Function::Elu: {  // alpha, scale, scale of the input
      const auto negative = hn::Mul(p[0], p[1]);
      return for_each<1>(elements, [&](auto, const auto* x) HWY_ATTR {
        const auto below = hn::Mul(by_need<Expm1>(d, hn::Mul(x[0], p[2])), negative);
        return hn::IfThenElse(hn::Gt(x[0], zero), hn::Mul(x[0], p[1]), below);
      });
    }
    case Function::EluBackward: {  // alpha, scale, scale of the input, whether x[1] is the result
      const auto negative = hn::Mul(p[0], p[1]);
      const bool is_result = parameters[3] != 0;
      return for_each<2>(elements, [&](auto, const auto* x) HWY_ATTR {
        const auto power =
            is_result ? hn::Add(x[1], negative) : hn::Mul(by_need<Exp>(d, hn::Mul(x[1], p[2])), negative);
        const auto slope = hn::IfThenElse(hn::Gt(x[1], zero), p[1], hn::Mul(p[2], power));
        return hn::Mul(x[0], slope);
      });
    }
    case Function::LogSigmoid:
      return for_each<1>(
          elements, [&](auto, const auto* x) HWY_ATTR { return hn::Neg(softplus_of(d, hn::Neg(x[0]))); });
    case Function::ExpOfNegativeSize:
      return for_each<1>(
          elements, [&](auto, const auto* x) HWY_ATTR { return by_need<Exp>(d, hn::Neg(hn::Abs(x[0]))); });
    case Function::Logit: {  // the distance from 0 and 1, or less than 0
      const bool is_free = parameters[0] < 0;
      const auto most = hn::Sub(one, p[0]);
      return for_each<1>(elements, [&](auto, const auto* x) HWY_ATTR {
        const auto high = hn::IfThenElse(hn::Gt(x[0], most), most, x[0]);
        const auto y = is_free ? x[0] : hn::IfThenElse(hn::Lt(x[0], p[0]), p[0], high);
        return by_need<Log>(d, hn::Div(y, hn::Sub(one, y)));
      });
    }
    case Function::Glu:
      return for_each<2>(
          elements, [&](auto, const auto* x) HWY_ATTR { return hn::Mul(x[0], by_need<Sigmoid>(d, x[1])); });
    case Function::Softshrink:
      return for_each<1>(elements, [&](auto, const auto* x) HWY_ATTR {
        const auto below =
            hn::IfThenElse(hn::Lt(x[0], hn::Neg(p[0])), hn::Add(x[0], p[0]), hn::Mul(x[0], zero));
        return hn::IfThenElse(hn::Gt(x[0], p[0]), hn::Sub(x[0], p[0]), below);
      });
    case Function::AddScaled:
      return for_each<2>(elements, [&](auto, const auto* x) HWY_ATTR { return fused(d, p[0], x[1], x[0]); });
    case Function::SubtractScaled:
      return for_each<2>(elements,
                         [&](auto, const auto* x) HWY_ATTR { return fused(d, hn::Neg(p[0]), x[1], x[0]); });
    case Function::Addcmul:
      return for_each<3>(
          elements, [&](auto, const auto* x) HWY_ATTR { return fused(d, hn::Mul(p[0], x[1]), x[2], x[0]); });
    case Function::LerpScalar:
      return for_each<2>(elements,
                         [&](auto, const auto* x) HWY_ATTR { return lerp_of(d, x[0], x[1], p[0]); });
    case Function::Lerp:
      return for_each<3>(elements,
                         [&](auto, const auto* x) HWY_ATTR { return lerp_of(d, x[0], x[1], x[2]); });
    case Function::Logaddexp:
      return for_each<2>(elements, [&](auto, const auto* x) HWY_ATTR { return logaddexp_of(d, x[0], x[1]); });
    case Function::BinaryCrossEntropy:
      return for_each<2>(
          elements, [&](auto, const auto* x) HWY_ATTR { return binary_cross_entropy_of(d, x[0], x[1]); });
    case Function::HuberBackward:  // the weight of the mean, delta
      return for_each<3>(elements, [&](auto, const auto* x) HWY_ATTR {
        const auto difference = hn::Sub(x[1], x[2]);
        const auto low = hn::IfThenElse(hn::Lt(difference, hn::Neg(p[1])), hn::Neg(p[1]), difference);
        const auto bounded = hn::IfThenElse(hn::Gt(difference, p[1]), p[1], low);
        return hn::Mul(hn::Mul(p[0], x[0]), bounded);
      });
    default:
      return;
  }
}

void activations_of_floats(Function function, const Elements<float>& elements, const double* parameters) {
  apply_any(function, elements, parameters);
}
void activations_of_doubles(Function function, const Elements<double>& elements, const double* parameters) {
  apply_any(function, elements, parameters);
}

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tutti::kernels {

HWY_EXPORT(activations_of_floats);
HWY_EXPORT(activations_of_doubles);

void apply_activation(Function function, const Elements<float>& elements, const double* parameters) {
  HWY_DYNAMIC_DISPATCH(activations_of_floats)(function, elements, parameters);
}

void apply_activation(Function function, const Elements<double>& elements, const double* parameters) {
  HWY_DYNAMIC_DISPATCH(activations_of_doubles)(function, elements, parameters);
}

}  // namespace tutti::kernels
#endif

#include "tutti/kernels/functions.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tutti/kernels/basic_functions.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "tutti/kernels/elements-inl.h"
#include "tutti/kernels/functions-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

// The gradients: x[0] is the gradient of the result.

struct SiluBackward {
  template <class D, class V>
  static HWY_INLINE Mask<D> is_plain(D d, const V* x) {
    return Exp::is_plain(d, x[1]);
  }
  template <class D, class V>
  static HWY_INLINE V plain(D d, const V* x) {
    return of(d, x, share(d, x[1], [d](V y) HWY_ATTR { return Exp::plain(d, y); }));
  }
  template <class D, class V>
  static HWY_INLINE V any(D d, const V* x) {
    return of(d, x, share(d, x[1], [d](V y) HWY_ATTR { return Exp::any(d, y); }));
  }

 private:
  template <class D, class V>
  static HWY_INLINE V of(D d, const V* x, const Share<V>& share) {
    return hn::Mul(x[0], fused(d, hn::Mul(x[1], share.s), share.rest, share.s));
  }
};

struct GeluBackward {
  template <class D, class V>
  static HWY_INLINE Mask<D> is_plain(D d, const V* x) {
    return Gelu::is_plain(d, x[1]);
  }
  template <class D, class V>
  static HWY_INLINE V plain(D d, const V* x) {
    return of(d, x, Erf::plain(d, hn::Mul(x[1], set(d, kRootHalf))), Exp::plain(d, power(d, x[1])));
  }
  template <class D, class V>
  static HWY_INLINE V any(D d, const V* x) {
    return of(d, x, Erf::any(d, hn::Mul(x[1], set(d, kRootHalf))), Exp::any(d, power(d, x[1])));
  }

 private:
  template <class D, class V>
  static HWY_INLINE V power(D d, V x) {
    return hn::Mul(hn::Mul(x, x), set(d, -0.5));
  }
  template <class D, class V>
  static HWY_INLINE V of(D d, const V* x, V erf, V exp) {
    const V half = set(d, 0.5);
    const V below = fused(d, half, erf, half);  // the normal distribution and its density
    const V density = hn::Mul(exp, set(d, 0.5 * kRootTwoOverPi));
    return hn::Mul(x[0], fused(d, x[1], density, below));
  }
};

struct GeluTanhBackward {
  template <class D, class V>
  static HWY_INLINE Mask<D> is_plain(D d, const V* x) {
    return GeluTanh::is_plain(d, x[1]);
  }
  template <class D, class V>
  static HWY_INLINE V plain(D d, const V* x) {
    return of(d, x, share(d, gelu_power(d, x[1]), [d](V y) HWY_ATTR { return Exp::plain(d, y); }));
  }
  template <class D, class V>
  static HWY_INLINE V any(D d, const V* x) {
    const V bounded[] = {x[0], at_least(d, at_most(d, x[1], 1e4), -1e4)};  // where x^3 is finite
    return of(d, bounded, share(d, gelu_power(d, bounded[1]), [d](V y) HWY_ATTR { return Exp::any(d, y); }));
  }

 private:
  template <class D, class V>
  static HWY_INLINE V of(D d, const V* x, const Share<V>& share) {
    const V linear = set(d, 2 * kRootTwoOverPi);
    const V slope =
        fused(d, hn::Mul(x[1], x[1]), set(d, 3 * 2 * kRootTwoOverPi * kGeluCube), linear);  // of gelu_power
    return hn::Mul(x[0], fused(d, hn::Mul(hn::Mul(x[1], slope), share.s), share.rest, share.s));
  }
};

template <class T>
HWY_INLINE void apply_any(Function function, const Elements<T>& elements) {
  switch (function) {
    case Function::Exp:
      return for_each_of<1, OfOne<Exp>>(elements);
    case Function::Expm1:
      return for_each_of<1, OfOne<Expm1>>(elements);
    case Function::Log:
      return for_each_of<1, OfOne<Log>>(elements);
    case Function::Log1p:
      return for_each_of<1, OfOne<Log1p>>(elements);
    case Function::Tanh:
      return for_each_of<1, OfOne<Tanh>>(elements);
    case Function::Sigmoid:
      return for_each_of<1, OfOne<Sigmoid>>(elements);
    case Function::Erf:
      return for_each_of<1, OfOne<Erf>>(elements);
    case Function::Silu:
      return for_each_of<1, OfOne<Silu>>(elements);
    case Function::Gelu:
      return for_each_of<1, OfOne<Gelu>>(elements);
    case Function::GeluTanh:
      return for_each_of<1, OfOne<GeluTanh>>(elements);
    case Function::TanhBackward:
      return for_each<2>(elements, [](auto d, const auto* x) HWY_ATTR {
        return hn::Mul(x[0], fused(d, hn::Neg(x[1]), x[1], set(d, 1)));  // x[1] is the result of tanh
      });
    case Function::SiluBackward:
      return for_each_of<2, SiluBackward>(elements);
    case Function::GeluBackward:
      return for_each_of<2, GeluBackward>(elements);
    case Function::GeluTanhBackward:
      return for_each_of<2, GeluTanhBackward>(elements);
    default:
      return;
  }
}

void basic_functions_of_floats(Function function, const Elements<float>& elements) {
  apply_any(function, elements);
}
void basic_functions_of_doubles(Function function, const Elements<double>& elements) {
  apply_any(function, elements);
}

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tutti::kernels {

HWY_EXPORT(basic_functions_of_floats);
HWY_EXPORT(basic_functions_of_doubles);

void apply_basic(Function function, const Elements<float>& elements) {
  HWY_DYNAMIC_DISPATCH(basic_functions_of_floats)(function, elements);
}

void apply_basic(Function function, const Elements<double>& elements) {
  HWY_DYNAMIC_DISPATCH(basic_functions_of_doubles)(function, elements);
}

}  // namespace tutti::kernels
#endif

// exp, log, erf and the functions that are made of them, for vectors of floats or doubles in each of
// Highway's targets. Included once per target, after hwy/foreach_target.h. Each function is one sequence of
// IEEE operations, so its bits are the same on every target.
//
// A function is a structure with three members: `is_plain` returns the elements for which the short formula
// `plain` is valid; `any` is valid for all elements, and gives the bits of `plain` where that is valid. `any`
// may return any NaN; with_one_nan() in elements-inl.h replaces it.
#if defined(TUTTI_KERNELS_FUNCTIONS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TUTTI_KERNELS_FUNCTIONS_INL_H
#undef TUTTI_KERNELS_FUNCTIONS_INL_H
#else
#define TUTTI_KERNELS_FUNCTIONS_INL_H
#endif

#include <cstddef>
#include <cstdint>
#include <hwy/highway.h>
#include <limits>

#include "tutti/kernels/coefficients.h"
#include "tutti/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

template <class D>
using Bits = hn::RebindToSigned<D>;
template <class D>
using Mask = hn::Mask<D>;

// The format of floats and doubles.
template <class T>
inline constexpr bool kIsFloat = sizeof(T) == 4;
template <class T>
inline constexpr int kFraction = kIsFloat<T> ? 23 : 52;  // bits behind the leading one
template <class T>
inline constexpr int kBias = kIsFloat<T> ? 127 : 1023;
// Adding this rounds to an integer, which is then the lowest bits.
template <class T>
inline constexpr T kInteger = kIsFloat<T> ? T(0x1.8p23) : T(0x1.8p52);
// exp(x) is a normal number if |x| is not larger.
template <class T>
inline constexpr T kExpPlain = kIsFloat<T> ? T(87) : T(708);

template <class D>
HWY_INLINE hn::Vec<D> set(D d, double value) {
  return hn::Set(d, static_cast<hn::TFromD<D>>(value));
}

// The polynomial with these coefficients, the constant first, by Horner's rule.
template <size_t kFirst = 0, class D, class V = hn::Vec<D>, size_t kCount>
HWY_INLINE V polynomial(D d, V x, const hn::TFromD<D> (&coefficients)[kCount]) {
  const V constant = hn::Set(d, coefficients[kFirst]);
  if constexpr (kFirst + 1 == kCount)
    return constant;
  else
    return fused(d, polynomial<kFirst + 1>(d, x, coefficients), x, constant);
}

// c - a b with one rounding.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V fused_difference(D d, V a, V b, V c) {
#if HWY_NATIVE_FMA
  static_cast<void>(d);
  return hn::NegMulAdd(a, b, c);
#else
  return fused(d, hn::Neg(a), b, c);
#endif
}

// The smaller and the larger one of `x` and a bound. NaN stays NaN, which Highway's Min and Max do not
// promise.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V at_most(D d, V x, double high) {
  const V bound = set(d, high);
  return hn::IfThenElse(hn::Gt(x, bound), bound, x);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V at_least(D d, V x, double low) {
  const V bound = set(d, low);
  return hn::IfThenElse(hn::Lt(x, bound), bound, x);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE Mask<D> is_within(D d, V x, double bound) {
  return hn::Le(hn::Abs(x), set(d, bound));
}

// 1 / b for a normal b whose reciprocal is normal, almost correctly rounded, and exactly for b = 1. Shorter
// than a division: a guess from the bits, and steps that cube its error of 6 percent (Newton's step with one
// more term).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V reciprocal(D d, V b) {
  using T = hn::TFromD<D>;
  const Bits<D> di;
  const V one = set(d, 1);
  constexpr auto kGuess = static_cast<hn::TFromD<Bits<D>>>(kIsFloat<T> ? 0x7ef311c7 : 0x7fde623822fc16e6);
  V y = hn::BitCast(d, hn::Sub(hn::Set(di, kGuess), hn::BitCast(di, b)));
  TUTTI_UNROLL
  for (int step = 0; step < (kIsFloat<T> ? 2 : 3); ++step) {
    const V error = fused_difference(d, b, y, one);
    y = fused(d, y, fused(d, error, error, error), y);
  }
  return y;
}

// x = count log(2) + rest, with the integer `count` in the lowest bits of `n`. |x| must be below 2^20.
template <class V>
struct Halves {
  V n;
  V count;
  V rest;
};

template <class D, class V = hn::Vec<D>>
HWY_INLINE Halves<V> halves(D d, V x) {
  using C = Coefficients<hn::TFromD<D>>;
  const V integer = set(d, kInteger<hn::TFromD<D>>);
  const V n = fused(d, x, set(d, C::kLog2e), integer);
  const V count = hn::Sub(n, integer);
  const V rest = fused(d, count, set(d, -C::kLog2), x);  // exact
  return {n, count, fused(d, count, set(d, -C::kLog2Rest), rest)};
}

// x 2^n for a result that is a normal number.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V scaled(D d, V x, V n) {
  const Bits<D> di;
  return hn::BitCast(
      d, hn::Add(hn::BitCast(di, x), hn::ShiftLeft<kFraction<hn::TFromD<D>>>(hn::BitCast(di, n))));
}

// 2^n for an integer whose power is a normal number.
template <class D>
HWY_INLINE hn::Vec<D> power_of_two(D d, hn::Vec<Bits<D>> n) {
  using T = hn::TFromD<D>;
  return hn::BitCast(d, hn::ShiftLeft<kFraction<T>>(hn::Add(n, hn::Set(Bits<D>(), kBias<T>))));
}

// x 2^n, rounded once, in two factors since 2^n alone may be no normal number.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V scaled_in_two(D d, V x, V n) {
  const Bits<D> di;
  const auto whole = hn::Sub(hn::BitCast(di, n), hn::BitCast(di, set(d, kInteger<hn::TFromD<D>>)));
  const auto half = hn::ShiftRight<1>(whole);
  return hn::Mul(hn::Mul(x, power_of_two(d, half)), power_of_two(d, hn::Sub(whole, half)));
}

// exp(x) for the rest of halves().
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_of_rest(D d, V x) {
  const V one = set(d, 1);
  return fused(d, x, fused(d, x, polynomial(d, x, Coefficients<hn::TFromD<D>>::kExp), one), one);
}

// Returns Of::plain(x) if all elements are plain, Of::any(x) if not.
template <class Of, class D, class V = hn::Vec<D>>
HWY_INLINE V by_need(D d, V x) {
  if (HWY_LIKELY(hn::AllTrue(d, Of::is_plain(d, x)))) return Of::plain(d, x);
  return Of::any(d, x);
}

struct Exp {
  template <class D, class V>
  static HWY_INLINE Mask<D> is_plain(D d, V x) {
    return is_within(d, x, kExpPlain<hn::TFromD<D>>);
  }
  template <class D, class V>
  static HWY_INLINE V plain(D d, V x) {
    const Halves<V> of = halves(d, x);
    return scaled(d, exp_of_rest(d, of.rest), of.n);
  }
  // exp(x) 2^power
  template <class D, class V>
  static HWY_INLINE V any(D d, V x, int power = 0) {
    const double highest = kIsFloat<hn::TFromD<D>> ? 90 : 711;
    const auto is_nothing = hn::Lt(x, set(d, kIsFloat<hn::TFromD<D>> ? -104 : -746));
    // Processors are slow where a product is below all normal numbers.
    const V within = hn::IfThenZeroElse(is_nothing, at_most(d, x, highest));
    const Halves<V> of = halves(d, within);
    const V power_of = scaled_in_two(d, exp_of_rest(d, of.rest), hn::Add(of.n, set(d, power)));
    return hn::IfThenZeroElse(is_nothing, power_of);
  }
};

struct Expm1 {
  template <class D, class V>
  static HWY_INLINE Mask<D> is_plain(D d, V x) {
    return is_within(d, x, kExpPlain<hn::TFromD<D>>);
  }
  template <class D, class V>
  static HWY_INLINE V plain(D d, V x) {
    return hn::CopySign(without_sign(d, x), x);  // expm1(-0) is -0
  }
  // expm1(x), but 0 for -0
  template <class D, class V>
  static HWY_INLINE V without_sign(D d, V x) {
    const V one = set(d, 1);
    const Halves<V> of = halves(d, x);
    const V p = fused(d, hn::Mul(of.rest, of.rest),
                      polynomial(d, of.rest, Coefficients<hn::TFromD<D>>::kExpm1), of.rest);
    const V power = scaled(d, one, of.n);
    return fused(d, power, p, hn::Sub(power, one));
  }
  template <class D, class V>
  static HWY_INLINE V any(D d, V x) {
    return hn::IfThenElse(is_plain(d, x), plain(d, x), hn::Sub(Exp::any(d, x), set(d, 1)));
  }
};

// A positive, normal number as 2^exponent (1 + f), with 1 + f from sqrt(1/2) to sqrt(2).
template <class V>
struct Parts {
  V exponent;
  V f;
};

template <class D, class V = hn::Vec<D>>
HWY_INLINE Parts<V> parts(D d, V x) {
  using T = hn::TFromD<D>;
  using I = hn::TFromD<Bits<D>>;
  const Bits<D> di;
  constexpr I kOne = static_cast<I>(kBias<T>) << kFraction<T>;
  constexpr I kRoot = static_cast<I>(kIsFloat<T> ? 0x3f3504f3 : 0x3fe6a09e667f3bcd);  // sqrt(1/2)
  const auto above = hn::Sub(hn::BitCast(di, x), hn::Set(di, kRoot));
  const auto fraction = hn::And(above, hn::Set(di, (I{1} << kFraction<T>)-1));
  // The exponent is made positive for the shift, and a number by the bits of `kInteger`.
  const hn::RebindToUnsigned<D> du;
  const auto biased = hn::ShiftRight<kFraction<T>>(hn::BitCast(du, hn::Add(above, hn::Set(di, kOne))));
  const V number = hn::BitCast(d, hn::Or(hn::BitCast(di, biased), hn::BitCast(di, set(d, kInteger<T>))));
  return {hn::Sub(number, set(d, kInteger<T> + kBias<T>)),
          hn::Sub(hn::BitCast(d, hn::Add(fraction, hn::Set(di, kRoot))), set(d, 1))};
}

// The parts of any positive number. Those of others do not count.
template <class D, class V = hn::Vec<D>>
HWY_INLINE Parts<V> parts_of_any(D d, V x) {
  using T = hn::TFromD<D>;
  constexpr int kUp = kIsFloat<T> ? 25 : 54;
  const auto is_small = hn::Lt(x, set(d, std::numeric_limits<T>::min()));
  Parts<V> of = parts(d, hn::IfThenElse(is_small, hn::Mul(x, set(d, int64_t{1} << kUp)), x));
  of.exponent = hn::Sub(of.exponent, hn::IfThenElse(is_small, set(d, kUp), hn::Zero(d)));
  return of;
}

// log((1 + f) 2^exponent) + extra
template <class D, class V = hn::Vec<D>>
HWY_INLINE V log_of_parts(D d, V exponent, V f, V extra) {
  using C = Coefficients<hn::TFromD<D>>;
  const V curved = fused(d, f, polynomial(d, f, C::kLog), set(d, -0.5));
  const V small = fused(d, hn::Mul(f, f), curved, extra);
  return fused(d, exponent, set(d, C::kLog2), hn::Add(f, small));
}

struct Log {
  template <class D, class V>
  static HWY_INLINE Mask<D> is_plain(D d, V x) {
    using Limits = std::numeric_limits<hn::TFromD<D>>;
    return hn::And(hn::Ge(x, set(d, Limits::min())), hn::Le(x, set(d, Limits::max())));
  }
  template <class D, class V>
  static HWY_INLINE V plain(D d, V x) {
    const Parts<V> of = parts(d, x);
    const V low = hn::Mul(of.exponent, set(d, Coefficients<hn::TFromD<D>>::kLog2Rest));
    return log_of_parts(d, of.exponent, of.f, low);
  }
  template <class D, class V>
  static HWY_INLINE V any(D d, V x) {
    const Parts<V> of = parts_of_any(d, x);
    const V low = hn::Mul(of.exponent, set(d, Coefficients<hn::TFromD<D>>::kLog2Rest));
    return with_ends(d, x, log_of_parts(d, of.exponent, of.f, low));
  }
  // The ends of a logarithm, at x = 0 and below, and at infinity.
  template <class D, class V>
  static HWY_INLINE V with_ends(D d, V x, V result) {
    const V infinite = set(d, std::numeric_limits<double>::infinity());
    result = hn::IfThenElse(hn::Eq(x, infinite), infinite, result);
    result = hn::IfThenElse(hn::Eq(x, hn::Zero(d)), hn::Neg(infinite), result);
    return hn::IfThenElse(hn::Ge(x, hn::Zero(d)), result, set(d, std::numeric_limits<double>::quiet_NaN()));
  }
};

struct Log1p {
  template <class D, class V>
  static HWY_INLINE Mask<D> is_plain(D d, V x) {
    const V most = set(d, std::numeric_limits<hn::TFromD<D>>::max());
    return hn::And(hn::Gt(x, set(d, -1)), hn::Lt(x, most));
  }
  template <class D, class V>
  static HWY_INLINE V plain(D d, V x) {
    const V one = set(d, 1);
    const V sum = hn::Add(one, x);
    const V part = hn::Sub(sum, one);
    const V lost = hn::Add(hn::Sub(one, hn::Sub(sum, part)), hn::Sub(x, part));  // 1 + x - sum, exactly
    const Parts<V> of = parts(d, sum);
    // The reciprocal of a sum above 2^60 need not be right, since the loss does not count there.
    const V low = hn::Mul(lost, reciprocal(d, at_most(d, sum, 0x1p60)));
    const V extra = fused(d, of.exponent, set(d, Coefficients<hn::TFromD<D>>::kLog2Rest), low);
    return hn::CopySign(log_of_parts(d, of.exponent, of.f, extra), x);  // log1p(-0) is -0
  }
  template <class D, class V>
  static HWY_INLINE V any(D d, V x) {
    const V bounded = hn::IfThenElse(is_plain(d, x), x, hn::Zero(d));
    return hn::IfThenElse(is_plain(d, x), plain(d, bounded), Log::any(d, hn::Add(x, set(d, 1))));
  }
};

// tanh(|x|) = m / (m + 2) with m = expm1(2 |x|)
struct Tanh {
  static constexpr double kOne = 40;  // tanh is 1 from here on
  template <class D, class V>
  static HWY_INLINE Mask<D> is_plain(D d, V x) {
    return is_within(d, x, kOne);
  }
  template <class D, class V>
  static HWY_INLINE V plain(D d, V x) {
    return of_size(d, hn::Abs(x), x);
  }
  template <class D, class V>
  static HWY_INLINE V any(D d, V x) {
    return of_size(d, at_most(d, hn::Abs(x), kOne), x);
  }

 private:
  template <class D, class V>
  static HWY_INLINE V of_size(D d, V size, V x) {
    const V m = Expm1::without_sign(d, hn::Add(size, size));
    return hn::CopySign(hn::Mul(m, reciprocal(d, hn::Add(m, set(d, 2)))), x);
  }
};

struct Sigmoid {
  template <class D, class V>
  static HWY_INLINE Mask<D> is_plain(D d, V x) {
    return Exp::is_plain(d, x);
  }
  template <class D, class V>
  static HWY_INLINE V plain(D d, V x) {
    return reciprocal(d, hn::Add(set(d, 1), Exp::plain(d, hn::Neg(x))));
  }
  template <class D, class V>
  static HWY_INLINE V any(D d, V x) {
    const V ends = hn::IfThenElse(hn::Gt(x, hn::Zero(d)), set(d, 1), Exp::any(d, x));
    return hn::IfThenElse(is_plain(d, x), plain(d, x), ends);
  }
};

struct Silu {
  template <class D, class V>
  static HWY_INLINE Mask<D> is_plain(D d, V x) {
    return Sigmoid::is_plain(d, x);
  }
  template <class D, class V>
  static HWY_INLINE V plain(D d, V x) {
    return hn::Mul(x, Sigmoid::plain(d, x));
  }
  template <class D, class V>
  static HWY_INLINE V any(D d, V x) {
    return hn::Mul(x, Sigmoid::any(d, x));
  }
};

// Sigmoid and its complement.
template <class V>
struct Share {
  V s;
  V rest;
};

// The exponential is taken of -|x|, so that neither of them is lost.
template <class D, class V = hn::Vec<D>, class E>
HWY_INLINE Share<V> share(D d, V x, const E& exp) {
  const V e = exp(hn::Neg(hn::Abs(x)));
  const V near = reciprocal(d, hn::Add(set(d, 1), e));
  const V far = hn::Mul(e, near);
  const auto is_negative = hn::Lt(x, hn::Zero(d));
  return {hn::IfThenElse(is_negative, far, near), hn::IfThenElse(is_negative, near, far)};
}

// The complement 1 - erf(x) of numbers that are not negative, as exp(-x^2) erfcx(x).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V erfc_of_size(D d, V x) {
  using T = hn::TFromD<D>;
  const V within = at_most(d, x, kIsFloat<T> ? 10.2 : 28);
  const auto ratio = [&](V above, V below) HWY_ATTR {
    return kIsFloat<T> ? hn::Mul(above, reciprocal(d, below)) : hn::Div(above, below);
  };
  const V four = set(d, 4);
  const V t = ratio(hn::Sub(within, four), hn::Add(within, four));
  const V erfcx = ratio(polynomial(d, t, Coefficients<T>::kErfc), fused(d, set(d, 2), within, set(d, 1)));
  const V square = hn::Mul(within, within);
  const V rest = fused(d, within, within, hn::Neg(square));
  return hn::Mul(Exp::any(d, hn::Neg(square)), fused(d, hn::Neg(rest), erfcx, erfcx));
}

struct Erf {
  template <class D, class V>
  static HWY_INLINE Mask<D> is_plain(D d, V x) {
    return is_within(d, x, kOne);
  }
  template <class D, class V>
  static HWY_INLINE V plain(D d, V x) {
    return of_size(d, hn::Abs(x), x);
  }
  template <class D, class V>
  static HWY_INLINE V any(D d, V x) {
    return of_size(d, at_most(d, hn::Abs(x), kOne), x);
  }

 private:
  static constexpr double kOne = 3.95;  // erf of floats is 1 from here on

  // Floats: -expm1(log(1 - erf(x))). Doubles: x (1 + a polynomial in x^2), or 1 - erfc(x).
  template <class D, class V>
  static HWY_INLINE V of_size(D d, V size, V x) {
    using C = Coefficients<hn::TFromD<D>>;
    if constexpr (kIsFloat<hn::TFromD<D>>) {
      const V power = fused(d, size, polynomial(d, size, C::kErf), size);
      return hn::CopySign(Expm1::without_sign(d, hn::Neg(power)), x);
    } else {
      size = hn::Abs(x);
      const V near = fused(d, x, polynomial(d, hn::Mul(x, x), C::kErf), x);
      const V far = hn::CopySign(hn::Sub(set(d, 1), erfc_of_size(d, size)), x);
      return hn::IfThenElse(hn::Lt(size, set(d, 1)), near, far);
    }
  }
};

inline constexpr double kRootHalf = 0.70710678118654752440;
inline constexpr double kRootTwoOverPi = 0.79788456080286535588;
inline constexpr double kGeluCube = 0.044715;

struct Gelu {
  template <class D, class V>
  static HWY_INLINE Mask<D> is_plain(D d, V x) {
    return is_within(d, x, 5.5);
  }
  template <class D, class V>
  static HWY_INLINE V plain(D d, V x) {
    return weighted(d, x, Erf::plain(d, hn::Mul(x, set(d, kRootHalf))));
  }
  template <class D, class V>
  static HWY_INLINE V any(D d, V x) {
    return weighted(d, x, Erf::any(d, hn::Mul(x, set(d, kRootHalf))));
  }

 private:
  template <class D, class V>
  static HWY_INLINE V weighted(D d, V x, V erf) {
    const V half = hn::Mul(x, set(d, 0.5));
    return fused(d, half, erf, half);
  }
};

// 2 sqrt(2 / pi) (x + 0.044715 x^3): gelu by tanh is x sigmoid(of this)
template <class D, class V = hn::Vec<D>>
HWY_INLINE V gelu_power(D d, V x) {
  const V linear = hn::Mul(x, set(d, 2 * kRootTwoOverPi));
  return fused(d, hn::Mul(linear, set(d, kGeluCube)), hn::Mul(x, x), linear);
}

struct GeluTanh {
  template <class D, class V>
  static HWY_INLINE Mask<D> is_plain(D d, V x) {
    return is_within(d, x, 9);
  }
  template <class D, class V>
  static HWY_INLINE V plain(D d, V x) {
    return hn::Mul(x, Sigmoid::plain(d, gelu_power(d, x)));
  }
  template <class D, class V>
  static HWY_INLINE V any(D d, V x) {
    return hn::Mul(x, Sigmoid::any(d, gelu_power(d, x)));
  }
};

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

// The trigonometric functions and their inverses, for vectors in each of Highway's targets. Included once per
// target, after hwy/foreach_target.h.
#if defined(TUTTI_KERNELS_ANGLES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TUTTI_KERNELS_ANGLES_INL_H
#undef TUTTI_KERNELS_ANGLES_INL_H
#else
#define TUTTI_KERNELS_ANGLES_INL_H
#endif

#include <bit>
#include <cmath>
#include <cstdint>
#include <hwy/highway.h>

#include "tutti/kernels/elements-inl.h"
#include "tutti/kernels/powers-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

// x = pi / 2 (4 i + quarter) + high + low for some integer i, with |high| up to pi / 4.
struct Angle {
  double high;
  double low;
  int64_t quarter;
};

// For a finite x of at least 2^20, by the method of Payne and Hanek: the bits of 2 / pi that count for the
// fraction, times x.
inline Angle angle_of_large(double x) {
  __extension__ using Product = unsigned __int128;
  const auto bits = std::bit_cast<uint64_t>(x);
  const uint64_t factor = (bits & ((uint64_t{1} << 52U) - 1)) | (uint64_t{1} << 52U);
  // |x| = factor 2^exponent. Bits before this one make multiples of 4. There are 64 zeros before the point.
  const auto exponent = static_cast<int64_t>((bits >> 52U) & 0x7ffU) - 1075;
  const auto first = static_cast<uint64_t>(exponent + 62);
  const auto word = [](uint64_t i) { return i == 0 ? uint64_t{0} : uint64_t{kTwoOverPi[i - 1]}; };
  uint64_t window[3];
  for (uint64_t i = 0; i < 3; ++i) {
    const uint64_t at = first / 64 + i;
    const uint64_t shift = first % 64;
    window[i] = shift == 0 ? word(at) : (word(at) << shift) | (word(at + 1) >> (64 - shift));
  }
  const Product last = Product{factor} * window[2];
  const Product middle = Product{factor} * window[1] + (last >> 64U);
  const Product top = Product{factor} * window[0] + (middle >> 64U);
  const auto first_word = static_cast<uint64_t>(top);
  auto quarter = static_cast<int64_t>(first_word >> 62U);
  Product fraction = (Product{(first_word << 2U) | (static_cast<uint64_t>(middle) >> 62U)} << 64U) |
                     ((static_cast<uint64_t>(middle) << 2U) | (static_cast<uint64_t>(last) >> 62U));
  const bool is_above = (fraction >> 127U) != 0;
  if (is_above) {
    fraction = -fraction;
    ++quarter;
  }
  // No double is so close to a multiple of pi / 2 that the first word is 0.
  const auto zeros = static_cast<unsigned>(std::countl_zero(static_cast<uint64_t>(fraction >> 64U)));
  fraction <<= zeros;
  const int scale = -static_cast<int>(zeros) - 53;
  const double high = std::ldexp(static_cast<double>(static_cast<uint64_t>(fraction >> 75U)), scale);
  const double low =
      std::ldexp(static_cast<double>(static_cast<uint64_t>((fraction << 53U) >> 64U)), scale - 64);
  const double product = high * OfDouble::kPiHalf[0];
  const double rest = std::fma(high, OfDouble::kPiHalf[0], -product) +
                      (high * OfDouble::kPiHalf[1] + low * OfDouble::kPiHalf[0]);
  const double sign = is_above != (x < 0) ? -1 : 1;
  return {sign * product, sign * rest, x < 0 ? -quarter : quarter};
}

template <class D>
struct Angles {
  hn::Vec<D> high;
  hn::Vec<D> low;
  hn::Vec<Bits<D>> quarter;
};

// Angles up to this size are reduced by multiples of pi / 2 in three parts.
template <class T>
inline constexpr double kSmallAngle = kIsFloat<T> ? 0x1p16 : 0x1p20;

template <class D, class V = hn::Vec<D>>
HWY_INLINE Angles<D> small_angles(D d, V x) {
  using T = hn::TFromD<D>;
  using C = Coefficients<T>;
  const V integer = set(d, kInteger<T>);
  const V n = fused(d, x, set(d, 0.6366197723675814), integer);
  const V count = hn::Sub(n, integer);
  const V first = fused(d, count, set(d, -C::kPiHalf[0]), x);  // exact
  const V second = hn::Mul(count, set(d, C::kPiHalf[1]));
  const V second_low = fused(d, count, set(d, C::kPiHalf[1]), hn::Neg(second));
  const V difference = hn::Sub(first, second);
  const V part = hn::Sub(difference, first);
  const V lost = hn::Sub(hn::Sub(first, hn::Sub(difference, part)), hn::Add(second, part));
  const V low = fused(d, count, set(d, -C::kPiHalf[2]), hn::Sub(lost, second_low));
  const V high = hn::Add(difference, low);
  return {high, hn::Add(hn::Sub(difference, high), low), hn::BitCast(Bits<D>(), n)};
}

// The angles of doubles.
template <class D, class V = hn::Vec<D>>
HWY_INLINE Angles<D> angles(D d, V x) {
  const Bits<D> di;
  const Angles<D> result = small_angles(d, x);
  const auto is_large = hn::Gt(hn::Abs(x), set(d, kSmallAngle<double>));
  if (HWY_LIKELY(hn::AllFalse(d, is_large))) return result;
  HWY_ALIGN double all[kLanes<double>];
  HWY_ALIGN double highs[kLanes<double>];
  HWY_ALIGN double lows[kLanes<double>];
  HWY_ALIGN int64_t quarters[kLanes<double>];
  hn::Store(x, d, all);
  hn::Store(result.high, d, highs);
  hn::Store(result.low, d, lows);
  hn::Store(result.quarter, di, quarters);
  for (int64_t i = 0; i < kLanes<double>; ++i) {
    if (!(std::fabs(all[i]) > kSmallAngle<double>)) continue;
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const Angle angle = std::isinf(all[i]) ? Angle{nan, nan, 0} : angle_of_large(all[i]);
    highs[i] = angle.high;
    lows[i] = angle.low;
    quarters[i] = angle.quarter;
  }
  return {hn::Load(d, highs), hn::Load(d, lows), hn::Load(di, quarters)};
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V sin_within(D d, V high, V low) {
  const V square = hn::Mul(high, high);
  const V tail = hn::Mul(low, fused(d, square, set(d, -0.5), set(d, 1)));
  return hn::Add(
      high, fused(d, hn::Mul(high, square), polynomial(d, square, Coefficients<hn::TFromD<D>>::kSin), tail));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V cos_within(D d, V high, V low) {
  const V one = set(d, 1);
  const V square = hn::Mul(high, high);
  const V half = hn::Mul(square, set(d, 0.5));
  const V first = hn::Sub(one, half);
  const V lost = hn::Sub(hn::Sub(one, first), half);
  const V curve = fused(d, hn::Mul(square, square), polynomial(d, square, Coefficients<hn::TFromD<D>>::kCos),
                        hn::Mul(hn::Neg(high), low));
  return hn::Add(first, hn::Add(lost, curve));
}

// Returns true where the last or the last but one bit of the quarter is set.
template <class D>
HWY_INLINE Mask<D> has_bit(D d, hn::Vec<Bits<D>> quarter, int bit) {
  return hn::RebindMask(d, hn::TestBit(quarter, hn::Set(Bits<D>(), static_cast<hn::TFromD<Bits<D>>>(bit))));
}

// sin of the angle and of some quarters of a turn more.
template <int kQuarters>
struct SinOf {
  template <class D, class V>
  static HWY_INLINE V of(D d, V x, const Angles<D>& angles) {
    using I = hn::TFromD<Bits<D>>;
    const auto quarter = hn::Add(angles.quarter, hn::Set(Bits<D>(), static_cast<I>(kQuarters)));
    const V size = hn::IfThenElse(has_bit(d, quarter, 1), cos_within(d, angles.high, angles.low),
                                  sin_within(d, angles.high, angles.low));
    const V result = hn::IfThenElse(has_bit(d, quarter, 2), hn::Neg(size), size);
    return kQuarters > 0 ? result : hn::IfThenElse(hn::Eq(x, hn::Zero(d)), x, result);  // sin(-0) is -0
  }
};

struct TanOf {
  template <class D, class V>
  static HWY_INLINE V of(D d, V x, const Angles<D>& angles) {
    const V sin = sin_within(d, angles.high, angles.low);
    const V cos = cos_within(d, angles.high, angles.low);
    const auto is_odd = has_bit(d, angles.quarter, 1);
    const V result = hn::Div(hn::IfThenElse(is_odd, hn::Neg(cos), sin), hn::IfThenElse(is_odd, sin, cos));
    return hn::IfThenElse(hn::Eq(x, hn::Zero(d)), x, result);
  }
};

// A function of an angle. Large floats are computed as doubles.
template <class Of>
struct OfAngle {
  template <class D, class V>
  static HWY_INLINE Mask<D> is_plain(D d, V x) {
    return is_within(d, x, kSmallAngle<hn::TFromD<D>>);
  }
  template <class D, class V>
  static HWY_INLINE V plain(D d, V x) {
    return Of::of(d, x, small_angles(d, x));
  }
  template <class D, class V>
  static HWY_INLINE V any(D d, V x) {
    if constexpr (kIsFloat<hn::TFromD<D>>) {
      const V small = plain(d, x);
      if (HWY_LIKELY(hn::AllTrue(d, is_plain(d, x)))) return small;
      return hn::IfThenElse(is_plain(d, x), small, in_doubles(d, x, [](auto wide, const auto* y) HWY_ATTR {
                              return any(wide, y[0]);
                            }));
    } else {
      return Of::of(d, x, angles(d, x));
    }
  }
};

using Sin = OfAngle<SinOf<0>>;
using Cos = OfAngle<SinOf<1>>;
using Tan = OfAngle<TanOf>;

// The angle whose sine is `size` if that is up to 1/2. If it is more: pi / 2 minus half of the result is.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V asin_or_half(D d, Mask<D> is_more, V size) {
  const V half = set(d, 0.5);
  const V square = hn::IfThenElse(is_more, fused(d, size, hn::Neg(half), half), hn::Mul(size, size));
  const V root = hn::IfThenElse(is_more, hn::Sqrt(square), size);
  return fused(d, hn::Mul(root, square), polynomial(d, square, Coefficients<hn::TFromD<D>>::kAsin), root);
}

// pi / 2 - x
template <class D, class V = hn::Vec<D>>
HWY_INLINE V from_pi_half(D d, V x) {
  return hn::Sub(set(d, Coefficients<hn::TFromD<D>>::kPiHalf[0]),
                 hn::Sub(x, set(d, Coefficients<hn::TFromD<D>>::kPiHalf[1])));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V asin_of(D d, V x) {
  const V size = hn::Abs(x);
  const auto is_more = hn::Gt(size, set(d, 0.5));
  const V angle = asin_or_half(d, is_more, size);
  return hn::CopySign(hn::IfThenElse(is_more, from_pi_half(d, hn::Add(angle, angle)), angle), x);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V acos_of(D d, V x) {
  const V size = hn::Abs(x);
  const auto is_more = hn::Gt(size, set(d, 0.5));
  const V angle = asin_or_half(d, is_more, size);
  const V twice = hn::Add(angle, angle);
  const V pi = set(d, 2 * Coefficients<hn::TFromD<D>>::kPiHalf[0]);
  const V behind = hn::Sub(pi, hn::Sub(twice, set(d, 2 * Coefficients<hn::TFromD<D>>::kPiHalf[1])));
  const V far = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), behind, twice);
  return hn::IfThenElse(is_more, far, from_pi_half(d, hn::CopySign(angle, x)));
}

// The angle whose tangent is a / b, for 0 <= a <= b: with t = tan(angle - pi / 4) above sqrt(2) - 1.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V atan_of_ratio(D d, V a, V b) {
  const V zero = hn::Zero(d);
  const auto is_more = hn::Gt(a, hn::Mul(b, set(d, 0.4142135623730950)));
  const V above = hn::IfThenElse(is_more, hn::Sub(a, b), a);
  const V below = hn::IfThenElse(is_more, hn::Add(a, b), b);
  const V ratio = hn::Div(above, below);
  const V t = hn::IfThenElse(hn::Eq(above, zero), zero, ratio);  // of two zeros too
  const V square = hn::Mul(t, t);
  const V rest = hn::IfThenElse(is_more, set(d, 0.5 * Coefficients<hn::TFromD<D>>::kPiHalf[1]), zero);
  const V angle = hn::Add(
      t, fused(d, hn::Mul(t, square), polynomial(d, square, Coefficients<hn::TFromD<D>>::kAtan), rest));
  return hn::IfThenElse(is_more, hn::Add(angle, set(d, 0.5 * Coefficients<hn::TFromD<D>>::kPiHalf[0])),
                        angle);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V atan2_of(D d, V y, V x) {
  const V infinity = set(d, std::numeric_limits<double>::infinity());
  const V up = hn::Abs(y);
  const V along = hn::Abs(x);
  const auto is_steep = hn::Gt(up, along);
  V large = hn::IfThenElse(is_steep, up, along);
  V small = hn::IfThenElse(is_steep, along, up);
  const V scale = hn::IfThenElse(hn::Gt(large, set(d, kIsFloat<hn::TFromD<D>> ? 0x1p120 : 0x1p1000)),
                                 set(d, 0x1p-4), set(d, 1));
  const auto are_infinite = hn::Eq(small, infinity);
  large = hn::IfThenElse(are_infinite, set(d, 1), hn::Mul(large, scale));
  small = hn::IfThenElse(are_infinite, set(d, 1), hn::Mul(small, scale));
  V angle = atan_of_ratio(d, small, large);
  angle = hn::IfThenElse(is_steep, from_pi_half(d, angle), angle);
  const V behind = hn::Sub(set(d, 2 * Coefficients<hn::TFromD<D>>::kPiHalf[0]),
                           hn::Sub(angle, set(d, 2 * Coefficients<hn::TFromD<D>>::kPiHalf[1])));
  const auto is_behind = hn::RebindMask(d, hn::Lt(hn::BitCast(Bits<D>(), x), hn::Zero(Bits<D>())));
  const V result = hn::CopySign(hn::IfThenElse(is_behind, behind, angle), y);
  return hn::IfThenElse(hn::And(hn::Eq(x, x), hn::Eq(y, y)), result,
                        set(d, std::numeric_limits<double>::quiet_NaN()));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V atan_of(D d, V x) {
  const V one = set(d, 1);
  const V size = hn::Abs(x);
  const auto is_steep = hn::Gt(size, one);
  const V angle = atan_of_ratio(d, hn::IfThenElse(is_steep, one, size), hn::IfThenElse(is_steep, size, one));
  return hn::CopySign(hn::IfThenElse(is_steep, from_pi_half(d, angle), angle), x);
}

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

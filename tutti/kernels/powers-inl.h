// Powers, logarithms of other bases, hyperbolic functions, the inverse of erf and their kin, for vectors in
// each of Highway's targets. Included once per target, after hwy/foreach_target.h.
#if defined(TUTTI_KERNELS_POWERS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TUTTI_KERNELS_POWERS_INL_H
#undef TUTTI_KERNELS_POWERS_INL_H
#else
#define TUTTI_KERNELS_POWERS_INL_H
#endif

#include <hwy/highway.h>

#include "tutti/kernels/functions-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

using OfDouble = Coefficients<double>;

// A number of twice the precision: the sum of both parts, the second one of which is below the last place of
// the first one.
template <class V>
struct Wide {
  V high;
  V low;
};

// a + b + low for a b that is not larger than a.
template <class V>
HWY_INLINE Wide<V> wide_sum(V a, V b, V low) {
  const V sum = hn::Add(a, b);
  const V rest = hn::Add(hn::Add(hn::Sub(a, sum), b), low);
  const V high = hn::Add(sum, rest);
  return {high, hn::Add(hn::Sub(sum, high), rest)};
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE Wide<V> wide_product(D d, Wide<V> a, Wide<V> b) {
  const V high = hn::Mul(a.high, b.high);
  const V exact = fused(d, a.high, b.high, hn::Neg(high));
  return {high, hn::Add(exact, fused(d, a.high, b.low, hn::Mul(a.low, b.high)))};
}

template <class D>
HWY_INLINE Wide<hn::Vec<D>> wide(D d, const double (&parts)[2]) {
  return {set(d, parts[0]), set(d, parts[1])};
}

// log(x) for an x above 0, with about 66 bits. It is 2 s + 2/3 s^3 + ... with s = f / (2 + f).
template <class D, class V = hn::Vec<D>>
HWY_INLINE Wide<V> wide_log(D d, V x) {
  const auto is_small = hn::Lt(x, set(d, 0x1p-1022));
  const Parts<V> of = parts(d, hn::IfThenElse(is_small, hn::Mul(x, set(d, 0x1p54)), x));
  const V exponent = hn::Sub(of.exponent, hn::IfThenElse(is_small, set(d, 54), hn::Zero(d)));
  const V two = set(d, 2);
  const V below = hn::Add(two, of.f);
  const V below_low = hn::Sub(of.f, hn::Sub(below, two));
  const V ratio = hn::Div(of.f, below);
  const V missing = fused(d, hn::Neg(ratio), below_low, fused(d, hn::Neg(ratio), below, of.f));
  const Wide<V> s = {ratio, hn::Div(missing, below)};
  const Wide<V> square = wide_product(d, s, s);
  const Wide<V> thirds = wide(d, OfDouble::kTwoThirds);
  const V rest = hn::Mul(square.high, polynomial(d, square.high, OfDouble::kLogWide));
  const Wide<V> curve = wide_product(d, wide_product(d, s, square), wide_sum(thirds.high, rest, thirds.low));
  const Wide<V> fraction =
      wide_sum(hn::Add(s.high, s.high), curve.high, hn::Add(hn::Add(s.low, s.low), curve.low));
  const Wide<V> whole =
      wide_product(d, {exponent, hn::Zero(d)}, {set(d, OfDouble::kLog2), set(d, OfDouble::kLog2Rest)});
  return wide_sum(whole.high, fraction.high, hn::Add(whole.low, fraction.low));
}

// exp(x.high + x.low)
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_of_wide(D d, Wide<V> x) {
  const V within = at_least(d, at_most(d, x.high, 711), -746);
  const Halves<V> of = halves(d, within);
  const V low = hn::IfThenElse(hn::Eq(within, x.high), x.low, hn::Zero(d));
  return scaled_in_two(d, exp_of_rest(d, hn::Add(of.rest, low)), of.n);
}

// The logarithm of doubles for the base that the reciprocal of its logarithm tells.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V log_by(D d, V x, const double (&reciprocal_of_log)[2]) {
  const Wide<V> log = wide_product(d, wide_log(d, x), wide(d, reciprocal_of_log));
  return Log::with_ends(d, x, hn::Add(log.high, log.low));
}

// The logarithm of floats for the base 2 or 10.
template <int kBase>
struct LogBy {
  template <class D, class V>
  static HWY_INLINE Mask<D> is_plain(D d, V x) {
    return Log::is_plain(d, x);
  }
  template <class D, class V>
  static HWY_INLINE V plain(D d, V x) {
    return of_parts(d, parts(d, x));
  }
  template <class D, class V>
  static HWY_INLINE V any(D d, V x) {
    return Log::with_ends(d, x, of_parts(d, parts_of_any(d, x)));
  }

 private:
  template <class D, class V>
  static HWY_INLINE V of_parts(D d, const Parts<V>& of) {
    using C = Coefficients<float>;
    const auto& factor = kBase == 2 ? C::kOneOverLog2 : C::kOneOverLog10;
    const V curved = fused(d, of.f, polynomial(d, of.f, C::kLog), set(d, -0.5));
    V low = hn::Mul(of.f, set(d, factor[1]));
    if (kBase == 10) low = fused(d, of.exponent, set(d, C::kLog10OfTwo[1]), low);
    low = fused(d, hn::Mul(hn::Mul(of.f, of.f), curved), set(d, factor[0]), low);
    const V fraction = fused(d, of.f, set(d, factor[0]), low);
    return fused(d, of.exponent, set(d, kBase == 2 ? 1 : C::kLog10OfTwo[0]), fraction);
  }
};

// log(x) of a positive, normal double, for results that are rounded to floats.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V log_of_float(D d, V x) {
  const Parts<V> of = parts(d, x);
  const V curved = fused(d, of.f, polynomial(d, of.f, OfDouble::kLogOfFloat), set(d, -0.5));
  const V fraction = fused(d, hn::Mul(of.f, of.f), curved, of.f);
  return fused(d, of.exponent, set(d, OfDouble::kLog2), fraction);
}

// exp(x), for results that are rounded to floats, which are infinite or 0 where x is bounded.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_of_float(D d, V x) {
  const Halves<V> of = halves(d, at_least(d, at_most(d, x, 200), -200));
  const V one = set(d, 1);
  const V curved = fused(d, of.rest, polynomial(d, of.rest, OfDouble::kExpOfFloat), one);
  return scaled(d, fused(d, of.rest, curved, one), of.n);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp2_of(D d, V x) {
  using T = hn::TFromD<D>;
  const V within = at_least(d, at_most(d, x, kIsFloat<T> ? 130 : 1030), kIsFloat<T> ? -155 : -1080);
  const V integer = set(d, kInteger<T>);
  const V n = hn::Add(within, integer);
  const V rest = hn::Mul(hn::Sub(within, hn::Sub(n, integer)), set(d, Coefficients<T>::kLog2));
  return scaled_in_two(d, exp_of_rest(d, rest), n);
}

// `T` is the type of the elements.
template <class T, class D, class V = hn::Vec<D>>
HWY_INLINE V pow_of(D d, V x, V y) {
  const V zero = hn::Zero(d);
  const V one = set(d, 1);
  const V infinity = set(d, std::numeric_limits<double>::infinity());
  const V size = hn::Abs(x);
  Wide<V> log = {zero, zero};  // GCC does not compile a default constructor of it for the target on ARM
  if constexpr (kIsFloat<T>) {
    log.high = log_of_float(d, size);
    const auto is_plain =
        hn::And(hn::Gt(x, zero), hn::And(hn::Lt(x, infinity), hn::Lt(hn::Abs(y), infinity)));
    if (HWY_LIKELY(hn::AllTrue(d, is_plain))) return exp_of_float(d, hn::Mul(y, log.high));
  } else {
    log = wide_log(d, size);
  }
  log.high = hn::IfThenElse(hn::Eq(size, zero), hn::Neg(infinity), log.high);
  log.high = hn::IfThenElse(hn::Eq(size, infinity), infinity, log.high);
  const V high = hn::Mul(y, log.high);
  V result = zero;
  if constexpr (kIsFloat<T>)
    result = exp_of_float(d, high);
  else
    result = exp_of_wide(d, Wide<V>{high, fused(d, y, log.low, fused(d, y, log.high, hn::Neg(high)))});
  const auto are_numbers = hn::And(hn::Eq(x, x), hn::Eq(y, y));
  result = hn::IfThenElse(hn::Eq(size, one), one, result);  // for an infinite y as well

  // For a negative x, the result is negative if y is odd, and there is no result if y is not whole.
  const auto is_negative = hn::RebindMask(d, hn::Lt(hn::BitCast(Bits<D>(), x), hn::Zero(Bits<D>())));
  const V half = hn::Mul(y, set(d, 0.5));
  const auto is_whole = hn::Eq(hn::Floor(y), y);
  const auto is_odd = hn::AndNot(hn::Eq(hn::Floor(half), half), is_whole);
  result = hn::IfThenElse(hn::And(is_negative, is_odd), hn::Neg(result), result);
  const auto is_none = hn::AndNot(is_whole, hn::And(hn::Lt(x, zero), hn::Lt(size, infinity)));
  const V nan = set(d, std::numeric_limits<double>::quiet_NaN());
  result = hn::IfThenElse(hn::AndNot(is_none, are_numbers), result, nan);
  return hn::IfThenElse(hn::Or(hn::Eq(y, zero), hn::Eq(x, one)), one, result);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V sinh_of(D d, V x) {
  const V size = hn::Abs(x);
  const V m = Expm1::any(d, at_most(d, size, 22));
  const V small = hn::Mul(set(d, 0.5), hn::Add(m, hn::Div(m, hn::Add(m, set(d, 1)))));
  return hn::CopySign(hn::IfThenElse(hn::Lt(size, set(d, 22)), small, Exp::any(d, size, -1)), x);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V cosh_of(D d, V x) {
  const V half = Exp::any(d, hn::Abs(x), -1);
  return hn::Add(half, hn::Div(set(d, 0.25), half));
}

// log1p(t), or for a large t its logarithm plus log(2).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V log1p_or_twice(D d, Mask<D> is_large, V t) {
  return hn::Add(Log1p::any(d, t), hn::IfThenElse(is_large, set(d, OfDouble::kLog2), hn::Zero(d)));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V asinh_of(D d, V x) {
  const V one = set(d, 1);
  const V size = hn::Abs(x);
  const auto is_large = hn::Gt(size, set(d, 0x1p500));
  const V square = hn::Mul(size, size);
  const V t = hn::Add(size, hn::Div(square, hn::Add(one, hn::Sqrt(hn::Add(square, one)))));
  return hn::CopySign(log1p_or_twice(d, is_large, hn::IfThenElse(is_large, size, t)), x);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V acosh_of(D d, V x) {
  const V one = set(d, 1);
  const auto is_large = hn::Gt(x, set(d, 0x1p500));
  const V above = hn::Sub(x, one);
  const V t = hn::Add(above, hn::Sqrt(fused(d, above, above, hn::Add(above, above))));
  const V result = log1p_or_twice(d, is_large, hn::IfThenElse(is_large, x, t));
  return hn::IfThenElse(hn::Ge(x, one), result, set(d, std::numeric_limits<double>::quiet_NaN()));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V atanh_of(D d, V x) {
  const V size = hn::Abs(x);
  const V log = Log1p::any(d, hn::Div(hn::Add(size, size), hn::Sub(set(d, 1), size)));
  return hn::CopySign(hn::Mul(log, set(d, 0.5)), x);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V erfc_of(D d, V x) {
  const V size = hn::Abs(x);
  const V far = erfc_of_size(d, size);
  const V signed_far = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Sub(set(d, 2), far), far);
  if constexpr (kIsFloat<hn::TFromD<D>>) {
    const V near = fused_difference(d, x, polynomial(d, hn::Mul(x, x), Coefficients<float>::kErfNear),
                                    hn::Sub(set(d, 1), x));
    return hn::IfThenElse(hn::Lt(size, set(d, 0.5)), near, signed_far);
  } else {
    return hn::IfThenElse(hn::Lt(size, set(d, 0.75)), hn::Sub(set(d, 1), Erf::any(d, x)), signed_far);
  }
}

// Of doubles: a guess, and one step of Halley's method. `T` is the type of the elements.
template <class T, class D, class V = hn::Vec<D>>
HWY_INLINE V erfinv_of(D d, V x) {
  const V one = set(d, 1);
  const V size = hn::Abs(x);
  const V rest = hn::Sub(one, size);
  const V product = hn::Mul(rest, hn::Add(one, size));
  const V infinity = set(d, std::numeric_limits<double>::infinity());
  V result = one;
  if constexpr (kIsFloat<T>) {
    const V w = hn::Neg(log_of_float(d, product));
    const V near = hn::Mul(size, polynomial(d, w, OfDouble::kErfinvNearOfFloat));
    const V far = polynomial(d, hn::Sub(hn::Sqrt(w), set(d, 4.2)), OfDouble::kErfinvFarOfFloat);
    result = hn::IfThenElse(hn::Gt(w, set(d, 5)), far, near);
  } else {
    const V w = hn::Neg(Log::any(d, product));
    const V near = hn::Mul(size, polynomial(d, w, OfDouble::kErfinvNear));
    const V far = polynomial(d, hn::Sub(hn::Sqrt(w), set(d, 4.2)), OfDouble::kErfinvFar);
    const V guess = hn::IfThenElse(hn::Gt(w, set(d, 5)), far, near);
    const V error = hn::IfThenElse(hn::Lt(size, set(d, 0.75)), hn::Sub(Erf::any(d, guess), size),
                                   hn::Sub(rest, erfc_of_size(d, guess)));
    const V slope = hn::Mul(Exp::any(d, hn::Neg(hn::Mul(guess, guess))), set(d, 1.1283791670955126));
    const V step = hn::Div(error, slope);
    result = hn::Sub(guess, hn::Div(step, fused(d, guess, step, one)));
  }
  result = hn::IfThenElse(hn::Eq(size, one), infinity, result);
  const V nan = set(d, std::numeric_limits<double>::quiet_NaN());
  return hn::CopySign(hn::IfThenElse(hn::Le(size, one), result, nan), x);
}

// The squares of floats are normal doubles.
template <class T, class D, class V = hn::Vec<D>>
HWY_INLINE V hypot_of(D d, V x, V y) {
  const V a = hn::Abs(x);
  const V b = hn::Abs(y);
  const V infinity = set(d, std::numeric_limits<double>::infinity());
  const auto is_infinite = hn::Or(hn::Eq(a, infinity), hn::Eq(b, infinity));
  if constexpr (kIsFloat<T>)
    return hn::IfThenElse(is_infinite, infinity, hn::Sqrt(fused(d, a, a, hn::Mul(b, b))));
  const auto is_more = hn::Gt(b, a);
  const V large = hn::IfThenElse(is_more, b, a);
  const V small = hn::IfThenElse(is_more, a, b);
  const V one = set(d, 1);
  V scale = hn::IfThenElse(hn::Gt(large, set(d, 0x1p500)), set(d, 0x1p-600), one);
  scale = hn::IfThenElse(hn::Lt(large, set(d, 0x1p-450)), set(d, 0x1p600), scale);
  const V p = hn::Mul(large, scale);
  const V q = hn::Mul(small, scale);
  const V root = hn::Div(hn::Sqrt(fused(d, p, p, hn::Mul(q, q))), scale);
  return hn::IfThenElse(is_infinite, infinity, root);
}

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

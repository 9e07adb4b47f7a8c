// Philox in vectors, and the functions that make distributions of its words, in each of Highway's targets.
// Included once per target, after hwy/foreach_target.h. The functions have errors of 1 to 2 units in the last
// place. Their polynomials go through the Chebyshev nodes of the interval.
#if defined(TUTTI_KERNELS_RANDOM_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TUTTI_KERNELS_RANDOM_INL_H
#undef TUTTI_KERNELS_RANDOM_INL_H
#else
#define TUTTI_KERNELS_RANDOM_INL_H
#endif

#include <algorithm>
#include <hwy/highway.h>

#include "tutti/kernels/random.h"
#include "tutti/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

// The lower 32 bits of word[j] in each lane are word j of a block; the upper 32 bits are of no use.
template <class V>
struct Blocks {
  V word[4];
};

// Returns the product of the lower 32 bits of each lane.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V times(D d, V x, uint32_t factor) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(d, uint64_t{static_cast<uint32_t>(hn::GetLane(x))} * factor);
#else
  static_cast<void>(d);
  const hn::Repartition<uint32_t, D> d32;
  return hn::MulEven(hn::BitCast(d32, x), hn::Set(d32, factor));
#endif
}

// Computes the block whose number is in each lane.
template <class D, class V = hn::Vec<D>>
HWY_INLINE Blocks<V> philox(D d, const Draw& draw, V number) {
  V x[4] = {number, hn::ShiftRight<32>(number), hn::Set(d, draw.number), hn::Set(d, draw.number >> 32)};
  auto key0 = static_cast<uint32_t>(draw.key);
  auto key1 = static_cast<uint32_t>(draw.key >> 32);
  TUTTI_UNROLL
  for (int round = 0; round < 10; ++round) {
    const V a = times(d, x[0], 0xD2511F53U);
    const V b = times(d, x[2], 0xCD9E8D57U);
    x[0] = hn::Xor(hn::Xor(hn::ShiftRight<32>(b), x[1]), hn::Set(d, uint64_t{key0}));
    x[2] = hn::Xor(hn::Xor(hn::ShiftRight<32>(a), x[3]), hn::Set(d, uint64_t{key1}));
    x[1] = b;
    x[3] = a;
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  return {{x[0], x[1], x[2], x[3]}};
}

// How the words of blocks become elements of `T`: lanes are blocks, and a block has kWords elements.
template <class T>
struct Words {
  static constexpr int64_t kBlocks = 64 / sizeof(T);  // as many as lanes of the widest vector
  static constexpr int64_t kWords = 16 / sizeof(T);
  static constexpr int64_t kChunk = kBlocks * kWords;
  static_assert(kDrawPiece % kChunk == 0);
};

template <class D, class V = hn::Vec<D>>
HWY_INLINE void words(D d, const Draw& draw, uint64_t block, V (&out)[4], hwy::SizeTag<4> /*bytes*/) {
#if HWY_TARGET == HWY_SCALAR
  const Tag<uint64_t> d64;
  const auto all = philox(d64, draw, hn::Set(d64, block));
  for (int j = 0; j < 4; ++j) out[j] = hn::Set(d, static_cast<uint32_t>(hn::GetLane(all.word[j])));
#else
  const hn::RepartitionToWide<D> d64;
  const auto even = hn::Add(hn::Set(d64, block), hn::ShiftLeft<1>(hn::Iota(d64, 0)));
  const auto low = philox(d64, draw, even);
  const auto high = philox(d64, draw, hn::Add(even, hn::Set(d64, uint64_t{1})));
  for (int j = 0; j < 4; ++j)
    out[j] = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(high.word[j])), hn::BitCast(d, low.word[j]));
#endif
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE void words(D d, const Draw& draw, uint64_t block, V (&out)[2], hwy::SizeTag<8> /*bytes*/) {
  const auto all = philox(d, draw, hn::Add(hn::Set(d, block), hn::Iota(d, 0)));
  const V lower = hn::Set(d, uint64_t{0xFFFFFFFF});
  for (int j = 0; j < 2; ++j)
    out[j] = hn::Or(hn::And(all.word[2 * j], lower), hn::ShiftLeft<32>(all.word[2 * j + 1]));
}

// Calls make(words) for the words of each vector of blocks. It replaces them by as many vectors of elements.
template <class T, class Make>
HWY_INLINE void for_each_block(const Draw& draw, int64_t first, int64_t last, T* out, const Make& make) {
  using Layout = Words<T>;
  const Tag<T> d;
  const hn::RebindToUnsigned<Tag<T>> du;
  HWY_ALIGN T part[Layout::kChunk];
  for (int64_t i = first; i < last; i += Layout::kChunk, out += Layout::kChunk) {
    const bool whole = last - i >= Layout::kChunk;
    T* const to = whole ? out : part;
    for (int64_t block = 0; block < Layout::kBlocks; block += kLanes<T>) {
      hn::Vec<decltype(du)> in[Layout::kWords];
      words(du, draw, static_cast<uint64_t>(i / Layout::kWords + block), in, hwy::SizeTag<sizeof(T)>());
      Vector<T> made[Layout::kWords];
      make(in, made);
      for (int64_t j = 0; j < Layout::kWords; ++j) hn::StoreU(made[j], d, to + j * Layout::kBlocks + block);
    }
    if (!whole) std::copy_n(part, last - i, out);
  }
}

template <class D, class T = hn::TFromD<D>, class V = hn::Vec<D>, size_t kCount>
HWY_INLINE V series(D d, V x, const T (&coefficients)[kCount]) {
  V sum = hn::Set(d, coefficients[kCount - 1]);
  for (size_t i = kCount - 1; i-- > 0;) sum = fused(d, sum, x, hn::Set(d, coefficients[i]));
  return sum;
}

// What differs between the types. The series are in z = s^2 = (f / (2 + f))^2 or z = angle^2:
// (log(1 + f) / s - 2) / z, (sin(angle) / angle - 1) / z and (cos(angle) - 1 + z / 2) / z^2.
template <class T>
struct Constants;

template <>
struct Constants<float> {
  static constexpr int kMantissa = 23;
  static constexpr int32_t kRootHalf = 0x3f3504f3;  // the bits of sqrt(1/2)
  static constexpr float kLog2High = 0.693359375F;  // log(2) in two parts, of which the first is short
  static constexpr float kLog2Low = -2.12194440e-4F;
  static constexpr float kLog[] = {0.66666685095429068746F, 0.39988757716604847003F, 0.29580985929974422621F};
  static constexpr float kSin[] = {-0.16666664661714698465F, 0.008332748154085032145F,
                                   -0.00019587865702101875127F};
  static constexpr float kCos[] = {0.041666664658901403725F, -0.0013888302919113632806F,
                                   0.000024547916853691016927F};
};

template <>
struct Constants<double> {
  static constexpr int kMantissa = 52;
  static constexpr int64_t kRootHalf = 0x3fe6a09e667f3bcd;
  static constexpr double kLog2High = 0.693147180369123816490;
  static constexpr double kLog2Low = 1.90821492927058770002e-10;
  static constexpr double kLog[] = {0.66666666666666697077, 0.39999999999898890514, 0.28571428626253837606,
                                    0.22222211089379496214, 0.18182892432536871201, 0.15331611722055007885,
                                    0.14617807153417324964};
  static constexpr double kSin[] = {-0.16666666666666664622,    0.0083333333333309472945,
                                    -0.00019841269836756772528, 2.7557316101617874437e-6,
                                    -2.505113165023518147e-8,   1.5918115263265975194e-10};
  static constexpr double kCos[] = {0.041666666666666665388,    -0.0013888888888887396492,
                                    0.000024801587298764560771, -2.7557317271145145962e-7,
                                    2.0876146146558611582e-9,   -1.1382623647474604629e-11};
};

// log(2^e (1 + f)) for 1 + f from sqrt(1/2) to sqrt(2).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V log_of_parts(D d, V e, V f) {
  using C = Constants<hn::TFromD<D>>;
  const V s = hn::Div(f, hn::Add(f, hn::Set(d, 2)));
  const V z = hn::Mul(s, s);
  const V rest = fused(d, hn::Neg(z), series(d, z, C::kLog), f);
  const V small = hn::Sub(hn::Mul(e, hn::Set(d, C::kLog2Low)), hn::Mul(s, rest));
  return fused(d, e, hn::Set(d, C::kLog2High), hn::Add(f, small));
}

// Writes a positive normal number as 2^e (1 + f).
template <class D, class V = hn::Vec<D>>
HWY_INLINE void split(D d, V x, V& e, V& f) {
  using C = Constants<hn::TFromD<D>>;
  const hn::RebindToSigned<D> di;
  const auto bits = hn::BitCast(di, x);
  const auto exponent = hn::ShiftRight<C::kMantissa>(hn::Sub(bits, hn::Set(di, C::kRootHalf)));
  e = hn::ConvertTo(d, exponent);
  f = hn::Sub(hn::BitCast(d, hn::Sub(bits, hn::ShiftLeft<C::kMantissa>(exponent))), hn::Set(d, 1));
}

// Returns word + 1/2, with one rounding.
template <class D, class W>
HWY_INLINE hn::Vec<D> plus_half(D d, W word) {
  using T = hn::TFromD<D>;
  constexpr int kHalf = sizeof(T) * 4;  // bits
  const hn::RebindToSigned<D> di;
  const hn::RebindToUnsigned<D> du;
  const auto high = hn::ConvertTo(d, hn::BitCast(di, hn::ShiftRight<kHalf>(word)));
  const auto mask = hn::Set(du, static_cast<hn::TFromD<decltype(du)>>((uint64_t{1} << kHalf) - 1));
  const auto low = hn::ConvertTo(d, hn::BitCast(di, hn::And(word, mask)));
  return fused(d, high, hn::Set(d, static_cast<T>(uint64_t{1} << kHalf)),
               hn::Add(low, hn::Set(d, static_cast<T>(0.5))));
}

// Returns log(u) for u = (word + 1/2) / 2^bits. It is never 0, and exact to the last places for u near 0 as
// well as near 1, where it is made of 1 - u.
template <class D, class W>
HWY_INLINE hn::Vec<D> log_of_uniform(D d, W word) {
  using T = hn::TFromD<D>;
  using V = hn::Vec<D>;
  constexpr int kBits = sizeof(T) * 8;
  constexpr T kAll = static_cast<T>(uint64_t{1} << (kBits - 1)) * 2;
  const V x = plus_half(d, word);
  V e;
  V f;
  split(d, x, e, f);
  const auto is_near_1 = hn::Gt(x, hn::Set(d, static_cast<T>(0.70710678118654752440) * kAll));
  const V short_of_1 = hn::Mul(plus_half(d, hn::Not(word)), hn::Set(d, -1 / kAll));
  f = hn::IfThenElse(is_near_1, short_of_1, f);
  e = hn::IfThenElse(is_near_1, hn::Zero(d), hn::Sub(e, hn::Set(d, static_cast<T>(kBits))));
  return log_of_parts(d, e, f);
}

// An angle from -pi/4 to pi/4, made of all bits but the highest two; never 0.
template <class D, class W>
HWY_INLINE hn::Vec<D> angle(D d, W word, hwy::SizeTag<4> /*bytes*/) {
  const hn::RebindToSigned<D> di;
  const auto turn = hn::Or(hn::BitCast(di, hn::ShiftLeft<2>(word)), hn::Set(di, 2));
  return hn::Mul(hn::ConvertTo(d, turn), hn::Set(d, 1.57079632679489661923F * 0x1p-32F));
}

template <class D, class W>
HWY_INLINE hn::Vec<D> angle(D d, W word, hwy::SizeTag<8> /*bytes*/) {
  const hn::RebindToSigned<D> di;
  const auto turn = hn::ConvertTo(d, hn::ShiftRight<11>(hn::BitCast(di, hn::ShiftLeft<2>(word))));
  return hn::Mul(hn::Add(turn, hn::Set(d, 0.5)), hn::Set(d, 1.57079632679489661923 * 0x1p-53));
}

// The cosine and sine of a uniform angle of the whole circle. The highest bit of the word mirrors an angle of
// the first quarter at the diagonal, the next one at the centre.
template <class D, class W>
HWY_INLINE void point_of_circle(D d, W word, hn::Vec<D>& x, hn::Vec<D>& y) {
  using T = hn::TFromD<D>;
  using C = Constants<T>;
  using V = hn::Vec<D>;
  const hn::RebindToUnsigned<D> du;
  const V a = angle(d, word, hwy::SizeTag<sizeof(T)>());
  const V z = hn::Mul(a, a);
  const V sine = fused(d, hn::Mul(a, z), series(d, z, C::kSin), a);
  const V near_1 = fused(d, z, hn::Set(d, static_cast<T>(-0.5)), hn::Set(d, 1));
  const V cosine = fused(d, hn::Mul(z, z), series(d, z, C::kCos), near_1);
  const auto highest = hn::Set(du, hn::TFromD<decltype(du)>{1} << (sizeof(T) * 8 - 1));
  const auto swapped = hn::RebindMask(d, hn::TestBit(word, highest));
  const V sign = hn::BitCast(d, hn::And(hn::ShiftLeft<1>(word), highest));
  x = hn::Xor(hn::IfThenElse(swapped, sine, cosine), sign);
  y = hn::Xor(hn::IfThenElse(swapped, cosine, sine), sign);
}

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

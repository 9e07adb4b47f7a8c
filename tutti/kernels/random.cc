#include "tutti/kernels/random.h"

#include <cmath>
#include <numeric>
#include <utility>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tutti/kernels/random.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "tutti/kernels/random-inl.h"
#include "tutti/kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

template <class T>
void fill_uniform(const Draw& draw, int64_t first, int64_t last, T from, T to, T* out) {
  constexpr int kDigits = Constants<T>::kMantissa + 1;
  const Tag<T> d;
  const hn::RebindToSigned<Tag<T>> di;
  const auto low = hn::Set(d, from);
  const auto high = hn::Set(d, to);
  const auto range = hn::Set(d, to - from);
  const auto unit = hn::Set(d, 1 / static_cast<T>(uint64_t{1} << kDigits));
  for_each_block(draw, first, last, out, [&](const auto& in, auto& made) HWY_ATTR {
    for (int64_t j = 0; j < Words<T>::kWords; ++j) {
      const auto digits = hn::BitCast(di, hn::ShiftRight<static_cast<int>(sizeof(T)) * 8 - kDigits>(in[j]));
      const auto x = fused(d, hn::Mul(hn::ConvertTo(d, digits), unit), range, low);
      made[j] = hn::IfThenElse(hn::Lt(x, high), x, low);  // it may have been rounded up
    }
  });
}

template <class T>
void fill_normal(const Draw& draw, int64_t first, int64_t last, T mean, T deviation, T* out) {
  const Tag<T> d;
  const auto centre = hn::Set(d, mean);
  const auto scale = hn::Set(d, deviation);
  const auto minus_two = hn::Set(d, -2);
  for_each_block(draw, first, last, out, [&](const auto& in, auto& made) HWY_ATTR {
    for (int64_t j = 0; j < Words<T>::kWords; j += 2) {
      const auto radius = hn::Sqrt(hn::Mul(log_of_uniform(d, in[j]), minus_two));
      Vector<T> x;
      Vector<T> y;
      point_of_circle(d, in[j + 1], x, y);
      made[j] = fused(d, hn::Mul(radius, x), scale, centre);
      made[j + 1] = fused(d, hn::Mul(radius, y), scale, centre);
    }
  });
}

template <class T>
void fill_exponential(const Draw& draw, int64_t first, int64_t last, T rate, T* out) {
  const Tag<T> d;
  const auto divisor = hn::Set(d, -rate);
  for_each_block(draw, first, last, out, [&](const auto& in, auto& made) HWY_ATTR {
    for (int64_t j = 0; j < Words<T>::kWords; ++j) made[j] = hn::Div(log_of_uniform(d, in[j]), divisor);
  });
}

template <class T>
void fill_cauchy(const Draw& draw, int64_t first, int64_t last, T median, T scale, T* out) {
  const Tag<T> d;
  const auto centre = hn::Set(d, median);
  const auto factor = hn::Set(d, scale);
  for_each_block(draw, first, last, out, [&](const auto& in, auto& made) HWY_ATTR {
    for (int64_t j = 0; j < Words<T>::kWords; ++j) {
      Vector<T> x;
      Vector<T> y;
      point_of_circle(d, in[j], x, y);
      made[j] = fused(d, hn::Div(y, x), factor, centre);
    }
  });
}

template <class T>
void fill_geometric(const Draw& draw, int64_t first, int64_t last, T p, T* out) {
  const Tag<T> d;
  const auto success = hn::Set(d, p);
  Vector<T> e;
  Vector<T> f;
  split(d, hn::Sub(hn::Set(d, 1), success), e, f);
  const auto is_small = hn::Lt(success, hn::Set(d, static_cast<T>(0.25)));
  const auto log_of_failure = log_of_parts(d, hn::IfThenElse(is_small, hn::Zero(d), e),
                                           hn::IfThenElse(is_small, hn::Neg(success), f));
  for_each_block(draw, first, last, out, [&](const auto& in, auto& made) HWY_ATTR {
    for (int64_t j = 0; j < Words<T>::kWords; ++j)
      made[j] = hn::Ceil(hn::Div(log_of_uniform(d, in[j]), log_of_failure));
  });
}

template <class T>
HWY_INLINE void fill_any(Distribution distribution, const Draw& draw, int64_t first, int64_t last, T a, T b,
                         T* out) {
  switch (distribution) {
    case Distribution::kUniform:
      return fill_uniform(draw, first, last, a, b, out);
    case Distribution::kNormal:
      return fill_normal(draw, first, last, a, b, out);
    case Distribution::kExponential:
      return fill_exponential(draw, first, last, a, out);
    case Distribution::kCauchy:
      return fill_cauchy(draw, first, last, a, b, out);
    case Distribution::kGeometric:
      return fill_geometric(draw, first, last, a, out);
  }
}

void fill_floats(Distribution distribution, const Draw& draw, int64_t first, int64_t last, float a, float b,
                 float* out) {
  fill_any(distribution, draw, first, last, a, b, out);
}

void fill_doubles(Distribution distribution, const Draw& draw, int64_t first, int64_t last, double a,
                  double b, double* out) {
  fill_any(distribution, draw, first, last, a, b, out);
}

// Writes `success` for each word that is at most `highest`, and 0 for the others.
void make_trials(const Draw& draw, int64_t first, int64_t last, uint32_t highest, float success, float* out) {
  const Tag<float> d;
  const Tag<int32_t> di;
  const auto flip = hn::Set(hn::RebindToUnsigned<decltype(di)>(), uint32_t{1} << 31);
  const auto bound = hn::Set(di, static_cast<int32_t>(highest ^ (uint32_t{1} << 31)));
  const auto one = hn::Set(d, success);
  for_each_block(draw, first, last, out, [&](const auto& in, auto& made) HWY_ATTR {
    for (int64_t j = 0; j < Words<float>::kWords; ++j) {
      const auto above = hn::Gt(hn::BitCast(di, hn::Xor(in[j], flip)), bound);
      made[j] = hn::IfThenZeroElse(hn::RebindMask(d, above), one);
    }
  });
}

void multiply_elements(const float* x, const float* y, float* out, int64_t count) {
  const float* const in[] = {x, y};
  map_row<2>(in, out, count, [](auto /*d*/, const auto* v) HWY_ATTR { return hn::Mul(v[0], v[1]); });
}

void make_words64(const Draw& draw, int64_t first, int64_t last, int64_t* out) {
  const Tag<int64_t> di;
  for_each_block(draw, first, last, out, [&](const auto& in, auto& made) HWY_ATTR {
    for (int64_t j = 0; j < Words<int64_t>::kWords; ++j) made[j] = hn::BitCast(di, in[j]);
  });
}

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tutti::kernels {
namespace {

// An integer from 0 to range - 1, made of 64 random bits.
uint64_t below(uint64_t range, int64_t bits) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>(Wide{static_cast<uint64_t>(bits)} * range >> 64);
}

}  // namespace

HWY_EXPORT(fill_floats);
HWY_EXPORT(fill_doubles);
HWY_EXPORT(make_trials);
HWY_EXPORT(multiply_elements);
HWY_EXPORT(make_words64);

namespace {

// Writes `success` with probability p, or else 0.
void scaled_bernoulli(const Draw& draw, int64_t first, int64_t last, double p, float success, float* out) {
  const auto ones = static_cast<uint64_t>(std::llrint(p * 0x1p32));  // of the 2^32 words
  if (ones == 0)
    std::fill_n(out, last - first, 0.0F);
  else
    HWY_DYNAMIC_DISPATCH(make_trials)(draw, first, last, static_cast<uint32_t>(ones - 1), success, out);
}

}  // namespace

void fill(Distribution distribution, const Draw& draw, int64_t first, int64_t last, float a, float b,
          float* out) {
  HWY_DYNAMIC_DISPATCH(fill_floats)(distribution, draw, first, last, a, b, out);
}

void fill(Distribution distribution, const Draw& draw, int64_t first, int64_t last, double a, double b,
          double* out) {
  HWY_DYNAMIC_DISPATCH(fill_doubles)(distribution, draw, first, last, a, b, out);
}

void bernoulli(const Draw& draw, int64_t first, int64_t last, double p, float* out) {
  scaled_bernoulli(draw, first, last, p, 1, out);
}

void bernoulli(const Draw& draw, int64_t first, int64_t last, double p, bool* out) {
  float part[kDrawPiece];
  for (int64_t i = first; i < last; i += kDrawPiece, out += kDrawPiece) {
    const int64_t count = std::min(kDrawPiece, last - i);
    bernoulli(draw, i, i + count, p, part);
    for (int64_t k = 0; k < count; ++k) out[k] = part[k] != 0;
  }
}

void drop(const Draw& draw, int64_t first, int64_t last, double p, float factor, const float* x, float* noise,
          float* out) {
  for (int64_t i = first; i < last; i += kDrawPiece) {
    const int64_t at = i - first;
    const int64_t count = std::min(kDrawPiece, last - i);
    scaled_bernoulli(draw, i, i + count, p, factor, noise + at);
    HWY_DYNAMIC_DISPATCH(multiply_elements)(x + at, noise + at, out + at, count);
  }
}

void integers(const Draw& draw, int64_t first, int64_t last, int64_t base, uint64_t range, int64_t* out) {
  HWY_DYNAMIC_DISPATCH(make_words64)(draw, first, last, out);
  if (range == 0) return;
  for (int64_t i = 0; i < last - first; ++i)
    out[i] = static_cast<int64_t>(static_cast<uint64_t>(base) + below(range, out[i]));
}

// The shuffle of Fisher and Yates.
void permutation(const Draw& draw, int64_t count, int64_t* out) {
  std::iota(out, out + count, int64_t{0});
  int64_t bits[kDrawPiece];
  for (int64_t first = 0; first < count; first += kDrawPiece) {
    const int64_t last = std::min(first + kDrawPiece, count);
    HWY_DYNAMIC_DISPATCH(make_words64)(draw, first, last, bits);
    for (int64_t i = first; i < last; ++i)
      std::swap(out[i],
                out[i + static_cast<int64_t>(below(static_cast<uint64_t>(count - i), bits[i - first]))]);
  }
}

}  // namespace tutti::kernels
#endif

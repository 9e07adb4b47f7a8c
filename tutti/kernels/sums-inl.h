// Sums in the order of operations that sums.h defines, for each of Highway's targets. Included once per
// target, after hwy/foreach_target.h.
//
// A class of terms names how many inputs it reads (kInputs), how many values belong to each sum (kValues),
// how many sums it makes at once (kSums), and what they start with (kStart). Its functions, for vectors of
// doubles: add(d, inputs, values, sums) adds a term of each lane, and join(a, b) joins two sums.
#if defined(TUTTI_KERNELS_SUMS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TUTTI_KERNELS_SUMS_INL_H
#undef TUTTI_KERNELS_SUMS_INL_H
#else
#define TUTTI_KERNELS_SUMS_INL_H
#endif

#include <algorithm>
#include <cstdint>

#include "tutti/kernels/rows-inl.h"
#include "tutti/kernels/simd-inl.h"
#include "tutti/kernels/sums.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

using Doubles = Vector<double>;

template <class D>
HWY_INLINE hn::Vec<D> load_doubles(D d, const float* from) {
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, D>(), from));
}

template <class D>
HWY_INLINE hn::Vec<D> load_doubles(D d, const double* from) {
  return hn::LoadU(d, from);
}

// The first `count` elements, fewer than a vector has, and zeros.
template <class D>
HWY_INLINE hn::Vec<D> load_first_doubles(D d, const float* from, int64_t count) {
  return hn::PromoteTo(d, load_first(hn::Rebind<float, D>(), from, count));
}

template <class D>
HWY_INLINE hn::Vec<D> load_first_doubles(D d, const double* from, int64_t count) {
  return load_first(d, from, count);
}

// Terms whose sums are joined by addition.
template <int64_t kInputCount, int64_t kValueCount, int64_t kSumCount>
struct AddedTerms {
  static constexpr int64_t kInputs = kInputCount;
  static constexpr int64_t kColumns = kInputCount;
  static constexpr int64_t kValues = kValueCount;
  static constexpr int64_t kSums = kSumCount;
  static constexpr double kStart = 0;
  template <class V>
  static HWY_INLINE V join(V a, V b) {
    return hn::Add(a, b);
  }
};

// The lanes of one vector, joined to one number.
template <class Term, class D>
HWY_INLINE double join_lanes(D /*d*/, hn::Vec<D> lanes) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (hn::MaxLanes(D()) > 1) {
    const hn::Half<D> half;
    return join_lanes<Term>(half, Term::join(hn::LowerHalf(half, lanes), hn::UpperHalf(half, lanes)));
  }
#endif
  return hn::GetLane(lanes);
}

// Sums one block whose terms lie together.
template <class Term, class T>
HWY_INLINE void sum_row_block(const T* const* in, int64_t terms, const double* values, double* sums) {
  const Tag<double> d;
  constexpr int64_t kWide = kLanes<double>;
  constexpr int64_t kVectors = kSumLanes / kWide;
  Doubles of_sum[std::max<int64_t>(1, Term::kValues)];
  TUTTI_UNROLL for (int64_t v = 0; v < Term::kValues; ++v) of_sum[v] = hn::Set(d, values[v]);
  Doubles lanes[kVectors][Term::kSums];
  TUTTI_UNROLL for (int64_t k = 0; k < kVectors; ++k) TUTTI_UNROLL for (int64_t s = 0; s < Term::kSums; ++s)
      lanes[k][s] = hn::Set(d, Term::kStart);
  int64_t i = 0;
  for (; i + kSumLanes <= terms; i += kSumLanes) {
    TUTTI_UNROLL for (int64_t k = 0; k < kVectors; ++k) {
      Doubles x[Term::kInputs];
      TUTTI_UNROLL for (int64_t j = 0; j < Term::kInputs; ++j) x[j] = load_doubles(d, in[j] + i + k * kWide);
      Term::add(d, x, of_sum, lanes[k]);
    }
  }
  if (i < terms) {
    TUTTI_UNROLL for (int64_t k = 0; k < kVectors; ++k) {
      const int64_t at = i + k * kWide;
      if (at >= terms) break;
      const int64_t count = std::min(kWide, terms - at);
      Doubles x[Term::kInputs];
      TUTTI_UNROLL for (int64_t j = 0; j < Term::kInputs; ++j) x[j] =
          count == kWide ? load_doubles(d, in[j] + at) : load_first_doubles(d, in[j] + at, count);
      Doubles added[Term::kSums];
      TUTTI_UNROLL for (int64_t s = 0; s < Term::kSums; ++s) added[s] = lanes[k][s];
      Term::add(d, x, of_sum, added);
      const auto is_term = hn::FirstN(d, static_cast<size_t>(count));
      TUTTI_UNROLL for (int64_t s = 0; s < Term::kSums; ++s) lanes[k][s] =
          hn::IfThenElse(is_term, added[s], lanes[k][s]);
    }
  }
  TUTTI_UNROLL for (int64_t s = 0; s < Term::kSums; ++s) {
    TUTTI_UNROLL for (int64_t half = kVectors / 2; half > 0; half /= 2)
        TUTTI_UNROLL for (int64_t k = 0; k < half; ++k) lanes[k][s] =
            Term::join(lanes[k][s], lanes[k + half][s]);
    sums[s] = join_lanes<Term>(d, lanes[0][s]);
  }
}

// Sums any number of terms that lie together: blocks are joined in pairs as soon as both are there.
template <class Term, class T>
HWY_INLINE void sum_row(const T* const* in, int64_t terms, const double* values, double* sums) {
  if (terms <= kBlockTerms) return sum_row_block<Term>(in, terms, values, sums);
  const hn::CappedTag<double, 1> d;
  double waiting[48][Term::kSums];
  int64_t count = 0;
  const auto join_last = [&]() HWY_ATTR {
    --count;
    for (int64_t s = 0; s < Term::kSums; ++s)
      waiting[count - 1][s] =
          hn::GetLane(Term::join(hn::Set(d, waiting[count - 1][s]), hn::Set(d, waiting[count][s])));
  };
  for (int64_t i = 0, block = 0; i < terms; i += kBlockTerms, ++block) {
    const T* from[Term::kInputs];
    for (int64_t j = 0; j < Term::kInputs; ++j) from[j] = in[j] + i;
    sum_row_block<Term>(from, std::min(kBlockTerms, terms - i), values, waiting[count++]);
    for (int64_t full = block; full % 2 == 1; full /= 2) join_last();
  }
  while (count > 1) join_last();
  std::copy_n(waiting[0], Term::kSums, sums);
}

// An input of sums beside each other: term i of column c is at data[i * step + c]. The inputs from kColumns
// on are shared by all columns, and their term i is at data[i * step].
template <class T>
struct ColumnInput {
  const T* data;
  int64_t step;
};

// Columns that are summed at once, so that their lanes stay in the first-level cache.
inline constexpr int64_t kStrip = 64;

// Adds terms i, i + kSumLanes and so on, `kRounds` of them, to their lane.
template <class Term, int64_t kRounds, class D, class T>
HWY_INLINE void add_terms_of_columns(D d, const ColumnInput<T>* in, int64_t i, int64_t column,
                                     const double (*shared)[Term::kInputs], const double* const* values,
                                     double (*lanes)[kSumLanes][kStrip], int64_t at) {
  using V = hn::Vec<D>;
  V of_sum[std::max<int64_t>(1, Term::kValues)];
  TUTTI_UNROLL for (int64_t v = 0; v < Term::kValues; ++v) of_sum[v] = hn::LoadU(d, values[v] + column);
  V sums[Term::kSums];
  TUTTI_UNROLL for (int64_t s = 0; s < Term::kSums; ++s) sums[s] =
      i < kSumLanes ? hn::Set(d, Term::kStart) : hn::LoadU(d, lanes[s][i % kSumLanes] + at);
  TUTTI_UNROLL for (int64_t r = 0; r < kRounds; ++r) {
    V x[Term::kInputs];
    TUTTI_UNROLL for (int64_t j = 0; j < Term::kInputs; ++j) {
      const T* const from = in[j].data + (i + r * kSumLanes) * in[j].step;
      x[j] = j < Term::kColumns ? load_doubles(d, from + column) : hn::Set(d, shared[r][j]);
    }
    Term::add(d, x, of_sum, sums);
  }
  TUTTI_UNROLL for (int64_t s = 0; s < Term::kSums; ++s) hn::StoreU(sums[s], d, lanes[s][i % kSumLanes] + at);
}

template <class Term, int64_t kRounds, class T>
HWY_INLINE void add_terms_of_strip(const ColumnInput<T>* in, int64_t i, int64_t first, int64_t count,
                                   const double* const* values, double (*lanes)[kSumLanes][kStrip]) {
  const Tag<double> d;
  const hn::CappedTag<double, 1> single;
  double shared[kRounds][Term::kInputs];
  for (int64_t r = 0; r < kRounds; ++r)
    for (int64_t j = Term::kColumns; j < Term::kInputs; ++j)
      shared[r][j] = static_cast<double>(in[j].data[(i + r * kSumLanes) * in[j].step]);
  int64_t c = 0;
  for (; c + kLanes<double> <= count; c += kLanes<double>)
    add_terms_of_columns<Term, kRounds>(d, in, i, first + c, shared, values, lanes, c);
  for (; c < count; ++c)
    add_terms_of_columns<Term, kRounds>(single, in, i, first + c, shared, values, lanes, c);
}

template <class Term, class D>
HWY_INLINE void join_lanes_of_columns(D d, int64_t count, double (*lanes)[kStrip], int64_t at, double* sum) {
  hn::Vec<D> joined[kSumLanes];
  for (int64_t l = 0; l < kSumLanes; ++l)
    joined[l] = l < count ? hn::LoadU(d, lanes[l] + at) : hn::Set(d, Term::kStart);
  for (int64_t half = kSumLanes / 2; half > 0; half /= 2)
    for (int64_t l = 0; l < half && l + half < count; ++l)
      joined[l] = Term::join(joined[l], joined[l + half]);
  hn::StoreU(joined[0], d, sum);
}

// Sums one block of `width` columns: sum s of column c is written to sums[s * distance + c].
template <class Term, class T>
HWY_INLINE void sum_columns_block(const ColumnInput<T>* in, int64_t terms, int64_t width,
                                  const double* const* values, double* sums, int64_t distance) {
  const Tag<double> d;
  const hn::CappedTag<double, 1> single;
  constexpr int64_t kWide = kLanes<double>;
  HWY_ALIGN double lanes[Term::kSums][kSumLanes][kStrip];
  for (int64_t first = 0; first < width; first += kStrip) {
    const int64_t count = std::min(kStrip, width - first);
    // Several terms of a lane at once, so that it is seldom stored.
    constexpr int64_t kRounds = 4;
    int64_t i = 0;
    for (; i + kRounds * kSumLanes <= terms; i += kRounds * kSumLanes)
      for (int64_t l = 0; l < kSumLanes; ++l)
        add_terms_of_strip<Term, kRounds>(in, i + l, first, count, values, lanes);
    for (; i < terms; ++i) add_terms_of_strip<Term, 1>(in, i, first, count, values, lanes);
    for (int64_t s = 0; s < Term::kSums; ++s) {
      double* const to = sums + s * distance + first;
      int64_t c = 0;
      for (; c + kWide <= count; c += kWide) join_lanes_of_columns<Term>(d, terms, lanes[s], c, to + c);
      for (; c < count; ++c) join_lanes_of_columns<Term>(single, terms, lanes[s], c, to + c);
    }
  }
}

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

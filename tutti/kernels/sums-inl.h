// Sums in the order of operations that sums.h defines, for each of Highway's targets. Included once per
// target, after hwy/foreach_target.h.
//
// A class of terms names how many inputs it reads (kInputs), how many values belong to each sum (kValues),
// how many sums it makes at once (kSums), what they start with (kStart), and whether the terms of floats are
// made in doubles (kInDoubles). Its functions: make(d, inputs, values, terms) makes a term of each lane for
// each sum, and join(a, b) joins terms or sums.
#if defined(TUTTI_KERNELS_SUMS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TUTTI_KERNELS_SUMS_INL_H
#undef TUTTI_KERNELS_SUMS_INL_H
#else
#define TUTTI_KERNELS_SUMS_INL_H
#endif

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "tutti/kernels/rows-inl.h"
#include "tutti/kernels/simd-inl.h"
#include "tutti/kernels/sums.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

using Doubles = Vector<double>;

// The type in which terms are made of elements of type T.
template <class Term, class T>
using Made = std::conditional_t<Term::kInDoubles, double, T>;

// Elements in the type of `d`: their own one, or double.
template <class D, class T>
HWY_INLINE hn::Vec<D> load_as(D d, const T* from) {
  if constexpr (std::is_same_v<hn::TFromD<D>, T>)
    return hn::LoadU(d, from);
  else
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<T, D>(), from));
}

// The first `count` elements, fewer than a vector has, and zeros.
template <class D, class T>
HWY_INLINE hn::Vec<D> load_first_as(D d, const T* from, int64_t count) {
  if constexpr (std::is_same_v<hn::TFromD<D>, T>)
    return load_first(d, from, count);
  else
    return hn::PromoteTo(d, load_first(hn::Rebind<T, D>(), from, count));
}

// The vectors of doubles that a vector is widened to.
template <class D>
using WideTag = hn::CappedTag<double, std::min(hn::MaxLanes(D()), hn::MaxLanes(Tag<double>()))>;
template <class D>
inline constexpr int64_t kParts = static_cast<int64_t>(hn::MaxLanes(D()) / hn::MaxLanes(WideTag<D>()));

template <class D>
HWY_INLINE void widen([[maybe_unused]] D d, hn::Vec<D> x, hn::Vec<WideTag<D>>* parts) {
  if constexpr (std::is_same_v<hn::TFromD<D>, double>) {
    parts[0] = x;
  } else if constexpr (kParts<D> == 1) {
    parts[0] = hn::PromoteTo(WideTag<D>(), x);
  } else {
#if HWY_TARGET != HWY_SCALAR
    const hn::Half<D> half;
    parts[0] = hn::PromoteTo(WideTag<D>(), hn::LowerHalf(half, x));
    parts[1] = hn::PromoteTo(WideTag<D>(), hn::UpperHalf(half, x));
#endif
  }
}

// Terms whose sums are joined by addition.
template <int64_t kInputCount, int64_t kValueCount, int64_t kSumCount>
struct AddedTerms {
  static constexpr int64_t kInputs = kInputCount;
  static constexpr int64_t kColumns = kInputCount;
  static constexpr int64_t kValues = kValueCount;
  static constexpr int64_t kSums = kSumCount;
  static constexpr double kStart = 0;
  static constexpr bool kInDoubles = false;
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

// Returns what a sum is that begins with kStart. That makes 0 of -0, and changes no other sum, so it may come
// last.
template <class Term>
HWY_INLINE double from_start(double sum) {
  const hn::CappedTag<double, 1> d;
  return hn::GetLane(Term::join(hn::Set(d, Term::kStart), hn::Set(d, sum)));
}

// Joins the terms of a group that belong to one lane, as a tree: those of term[0] are the result.
template <class Term, class V>
HWY_INLINE void join_group(V (*term)[Term::kSums]) {
  TUTTI_UNROLL for (int64_t half = kGroup / 2; half > 0; half /= 2)
      TUTTI_UNROLL for (int64_t r = 0; r < half; ++r) TUTTI_UNROLL for (int64_t s = 0; s < Term::kSums; ++s)
          term[r][s] = Term::join(term[r][s], term[r + half][s]);
}

// Makes the terms of the elements from `at` on, one for each lane. Those behind the end of the row are
// kStart.
template <class Term, class D, class T, class V = hn::Vec<D>>
HWY_INLINE void make_terms(D d, const T* const* in, int64_t at, int64_t terms, const V* of_sum, V* made) {
  const int64_t count = terms - at;
  V x[Term::kInputs];
  if (count >= static_cast<int64_t>(hn::MaxLanes(D()))) {
    TUTTI_UNROLL for (int64_t j = 0; j < Term::kInputs; ++j) x[j] = load_as(d, in[j] + at);
    return Term::make(d, x, of_sum, made);
  }
  const V none = hn::Set(d, static_cast<hn::TFromD<D>>(Term::kStart));
  TUTTI_UNROLL for (int64_t s = 0; s < Term::kSums; ++s) made[s] = none;
  if (count <= 0) return;
  TUTTI_UNROLL for (int64_t j = 0; j < Term::kInputs; ++j) x[j] = load_first_as(d, in[j] + at, count);
  V first[Term::kSums];
  Term::make(d, x, of_sum, first);
  const auto is_term = hn::FirstN(d, static_cast<size_t>(count));
  TUTTI_UNROLL for (int64_t s = 0; s < Term::kSums; ++s) made[s] = hn::IfThenElse(is_term, first[s], none);
}

// Adds the group of terms that begins with term i, as far as there are any before `end`, to the lanes.
template <class Term, class D, class T>
HWY_INLINE void add_group(D d, const T* const* in, int64_t i, int64_t end, const hn::Vec<D>* of_sum,
                          Doubles (*lanes)[kSumLanes / kLanes<double>]) {
  constexpr auto kWide = static_cast<int64_t>(hn::MaxLanes(D()));
  TUTTI_UNROLL for (int64_t k = 0; k < kSumLanes / kWide; ++k) {
    hn::Vec<D> made[kGroup][Term::kSums];
    TUTTI_UNROLL for (int64_t r = 0; r < kGroup; ++r)
        make_terms<Term>(d, in, i + r * kSumLanes + k * kWide, end, of_sum, made[r]);
    join_group<Term>(made);
    TUTTI_UNROLL for (int64_t s = 0; s < Term::kSums; ++s) {
      Doubles parts[kParts<D>];
      widen(d, made[0][s], parts);
      TUTTI_UNROLL for (int64_t p = 0; p < kParts<D>; ++p) lanes[s][k * kParts<D> + p] =
          Term::join(lanes[s][k * kParts<D> + p], parts[p]);
    }
  }
}

// Makes lanes of one term each.
template <class Term, class D, class T>
HWY_INLINE void make_lanes(D d, const T* const* in, int64_t terms, const hn::Vec<D>* of_sum,
                           Doubles (*lanes)[kSumLanes / kLanes<double>]) {
  constexpr auto kWide = static_cast<int64_t>(hn::MaxLanes(D()));
  TUTTI_UNROLL for (int64_t k = 0; k < kSumLanes / kWide; ++k) {
    hn::Vec<D> made[Term::kSums];
    make_terms<Term>(d, in, k * kWide, terms, of_sum, made);
    TUTTI_UNROLL for (int64_t s = 0; s < Term::kSums; ++s) widen(d, made[s], lanes[s] + k * kParts<D>);
  }
}

// Sums one block whose terms lie together.
template <class Term, class T>
HWY_INLINE void sum_row_block(const T* const* in, int64_t terms, const double* values, double* sums) {
  using M = Made<Term, T>;
  const Tag<M> d;
  const Tag<double> wide;
  constexpr int64_t kVectors = kSumLanes / kLanes<double>;
  Vector<M> of_sum[std::max<int64_t>(1, Term::kValues)];
  TUTTI_UNROLL for (int64_t v = 0; v < Term::kValues; ++v) of_sum[v] = hn::Set(d, static_cast<M>(values[v]));
  Doubles lanes[Term::kSums][kVectors];
  TUTTI_UNROLL for (int64_t s = 0; s < Term::kSums; ++s) TUTTI_UNROLL for (int64_t k = 0; k < kVectors; ++k)
      lanes[s][k] = hn::Set(wide, Term::kStart);
  constexpr int64_t kTerms = kGroup * kSumLanes;
  if (terms <= kSumLanes) {
    make_lanes<Term>(d, in, terms, of_sum, lanes);
  } else {
    int64_t i = 0;
    for (; i + kTerms <= terms; i += kTerms) add_group<Term>(d, in, i, i + kTerms, of_sum, lanes);
    if (i < terms) add_group<Term>(d, in, i, terms, of_sum, lanes);
  }
  TUTTI_UNROLL for (int64_t s = 0; s < Term::kSums; ++s) {
    TUTTI_UNROLL for (int64_t half = kVectors / 2; half > 0; half /= 2)
        TUTTI_UNROLL for (int64_t k = 0; k < half; ++k) lanes[s][k] =
            Term::join(lanes[s][k], lanes[s][k + half]);
    sums[s] = from_start<Term>(join_lanes<Term>(wide, lanes[s][0]));
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
  for (int64_t joins = count - 1; joins > 0; --joins) join_last();
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

// Adds terms i, i + kSumLanes and so on, `rows` of them, at most kGroup, to their lane.
template <class Term, class D, class T>
HWY_INLINE void add_terms_of_columns(D d, const ColumnInput<T>* in, int64_t i, int64_t rows, int64_t column,
                                     const double (*shared)[Term::kInputs],
                                     const hn::TFromD<D> (*values)[kStrip],
                                     double (*lanes)[kSumLanes][kStrip], int64_t at) {
  using V = hn::Vec<D>;
  using M = hn::TFromD<D>;
  V of_sum[std::max<int64_t>(1, Term::kValues)];
  TUTTI_UNROLL for (int64_t v = 0; v < Term::kValues; ++v) of_sum[v] = hn::LoadU(d, values[v] + at);
  V made[kGroup][Term::kSums];
  TUTTI_UNROLL for (int64_t r = 0; r < kGroup; ++r) {
    if (r >= rows) {
      TUTTI_UNROLL for (int64_t s = 0; s < Term::kSums; ++s) made[r][s] =
          hn::Set(d, static_cast<M>(Term::kStart));
      continue;
    }
    V x[Term::kInputs];
    TUTTI_UNROLL for (int64_t j = 0; j < Term::kInputs; ++j) {
      const T* const from = in[j].data + (i + r * kSumLanes) * in[j].step;
      x[j] = j < Term::kColumns ? load_as(d, from + column) : hn::Set(d, static_cast<M>(shared[r][j]));
    }
    Term::make(d, x, of_sum, made[r]);
  }
  join_group<Term>(made);
  const WideTag<D> wide;
  TUTTI_UNROLL for (int64_t s = 0; s < Term::kSums; ++s) {
    hn::Vec<WideTag<D>> parts[kParts<D>];
    widen(d, made[0][s], parts);
    TUTTI_UNROLL for (int64_t p = 0; p < kParts<D>; ++p) {
      double* const lane = lanes[s][i % kSumLanes] + at + p * static_cast<int64_t>(hn::MaxLanes(wide));
      const auto before = i < kSumLanes ? hn::Set(wide, Term::kStart) : hn::LoadU(wide, lane);
      hn::StoreU(Term::join(before, parts[p]), wide, lane);
    }
  }
}

template <class Term, class T>
HWY_INLINE void add_terms_of_strip(const ColumnInput<T>* in, int64_t i, int64_t rows, int64_t first,
                                   int64_t count, const Made<Term, T> (*values)[kStrip],
                                   double (*lanes)[kSumLanes][kStrip]) {
  using M = Made<Term, T>;
  const Tag<M> d;
  const hn::CappedTag<M, 1> single;
  double shared[kGroup][Term::kInputs];
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = Term::kColumns; j < Term::kInputs; ++j)
      shared[r][j] = static_cast<double>(in[j].data[(i + r * kSumLanes) * in[j].step]);
  int64_t c = 0;
  for (; c + kLanes<M> <= count; c += kLanes<M>)
    add_terms_of_columns<Term>(d, in, i, rows, first + c, shared, values, lanes, c);
  for (; c < count; ++c) add_terms_of_columns<Term>(single, in, i, rows, first + c, shared, values, lanes, c);
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

// Joins lanes `lane`, lane + kStep, and so on, of one term each, as join_lanes_of_columns() does.
template <class Term, int64_t kStep, class D, class T, class V = hn::Vec<D>>
HWY_INLINE void join_single_terms(D d, const ColumnInput<T>* in, int64_t terms, int64_t lane, int64_t column,
                                  const V* of_sum, hn::Vec<WideTag<D>> (*sums)[kParts<D>]) {
  if constexpr (kStep == kSumLanes) {
    V x[Term::kInputs];
    TUTTI_UNROLL for (int64_t j = 0; j < Term::kInputs; ++j) {
      const T* const from = in[j].data + lane * in[j].step;
      x[j] = j < Term::kColumns ? load_as(d, from + column) : hn::Set(d, static_cast<hn::TFromD<D>>(*from));
    }
    V made[Term::kSums];
    Term::make(d, x, of_sum, made);
    TUTTI_UNROLL for (int64_t s = 0; s < Term::kSums; ++s) widen(d, made[s], sums[s]);
  } else {
    join_single_terms<Term, 2 * kStep>(d, in, terms, lane, column, of_sum, sums);
    if (lane + kStep >= terms) return;
    hn::Vec<WideTag<D>> others[Term::kSums][kParts<D>];
    join_single_terms<Term, 2 * kStep>(d, in, terms, lane + kStep, column, of_sum, others);
    TUTTI_UNROLL for (int64_t s = 0; s < Term::kSums; ++s)
        TUTTI_UNROLL for (int64_t p = 0; p < kParts<D>; ++p) sums[s][p] =
            Term::join(sums[s][p], others[s][p]);
  }
}

// Sums columns of at most kSumLanes terms, as many columns as a vector has lanes.
template <class Term, class D, class T>
HWY_INLINE void sum_single_terms(D d, const ColumnInput<T>* in, int64_t terms, int64_t column,
                                 const double* const* values, double* sums, int64_t distance) {
  using V = hn::Vec<D>;
  const WideTag<D> wide;
  V of_sum[std::max<int64_t>(1, Term::kValues)];
  HWY_ALIGN hn::TFromD<D> rounded[hn::MaxLanes(D())];
  for (int64_t v = 0; v < Term::kValues; ++v) {
    std::copy_n(values[v] + column, hn::Lanes(d), rounded);
    of_sum[v] = hn::Load(d, rounded);
  }
  hn::Vec<WideTag<D>> joined[Term::kSums][kParts<D>];
  join_single_terms<Term, 1>(d, in, terms, 0, column, of_sum, joined);
  for (int64_t s = 0; s < Term::kSums; ++s)
    for (int64_t p = 0; p < kParts<D>; ++p)
      hn::StoreU(Term::join(hn::Set(wide, Term::kStart), joined[s][p]), wide,
                 sums + s * distance + column + p * static_cast<int64_t>(hn::MaxLanes(wide)));
}

// Sums one block of `width` columns: sum s of column c is written to sums[s * distance + c].
template <class Term, class T>
HWY_INLINE void sum_columns_block(const ColumnInput<T>* in, int64_t terms, int64_t width,
                                  const double* const* values, double* sums, int64_t distance) {
  const Tag<double> d;
  const hn::CappedTag<double, 1> single;
  constexpr int64_t kWide = kLanes<double>;
  HWY_ALIGN double lanes[Term::kSums][kSumLanes][kStrip];
  HWY_ALIGN Made<Term, T> of_sum[std::max<int64_t>(1, Term::kValues)][kStrip];
  if (terms <= kSumLanes) {
    using M = Made<Term, T>;
    int64_t c = 0;
    for (; c + kLanes<M> <= width; c += kLanes<M>)
      sum_single_terms<Term>(Tag<M>(), in, terms, c, values, sums, distance);
    for (; c < width; ++c)
      sum_single_terms<Term>(hn::CappedTag<M, 1>(), in, terms, c, values, sums, distance);
    return;
  }
  for (int64_t first = 0; first < width; first += kStrip) {
    const int64_t count = std::min(kStrip, width - first);
    for (int64_t v = 0; v < Term::kValues; ++v) std::copy_n(values[v] + first, count, of_sum[v]);
    int64_t i = 0;
    for (; i + kGroup * kSumLanes <= terms; i += kGroup * kSumLanes)
      for (int64_t l = 0; l < kSumLanes; ++l)
        add_terms_of_strip<Term>(in, i + l, kGroup, first, count, of_sum, lanes);
    for (int64_t l = 0; l < kSumLanes && i + l < terms; ++l)
      add_terms_of_strip<Term>(in, i + l, (terms - i - l + kSumLanes - 1) / kSumLanes, first, count, of_sum,
                               lanes);
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

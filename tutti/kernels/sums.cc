#include "tutti/kernels/sums.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tutti/kernels/sums.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "tutti/kernels/sums-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

struct Elements : AddedTerms<1, 0, 1> {
  template <class D, class V>
  static HWY_INLINE void make(D /*d*/, const V* x, const V* /*values*/, V* terms) {
    terms[0] = x[0];
  }
};

struct Squares : AddedTerms<1, 0, 1> {
  static constexpr bool kInDoubles = true;
  template <class D, class V>
  static HWY_INLINE void make(D /*d*/, const V* x, const V* /*values*/, V* terms) {
    terms[0] = hn::Mul(x[0], x[0]);
  }
};

struct Moments : AddedTerms<1, 1, 2> {
  static constexpr bool kInDoubles = true;
  template <class D, class V>
  static HWY_INLINE void make(D /*d*/, const V* x, const V* values, V* terms) {
    terms[0] = hn::Sub(x[0], values[0]);
    terms[1] = hn::Mul(terms[0], terms[0]);
  }
};

struct Products : AddedTerms<2, 1, 2> {
  template <class D, class V>
  static HWY_INLINE void make(D /*d*/, const V* x, const V* values, V* terms) {
    terms[0] = x[1];
    terms[1] = hn::Mul(x[1], hn::Sub(x[0], values[0]));
  }
};

struct Factors : AddedTerms<1, 0, 1> {
  static constexpr double kStart = 1;
  static constexpr bool kInDoubles = true;
  template <class D, class V>
  static HWY_INLINE void make(D /*d*/, const V* x, const V* /*values*/, V* terms) {
    terms[0] = x[0];
  }
  template <class V>
  static HWY_INLINE V join(V a, V b) {
    return hn::Mul(a, b);
  }
};

template <class Term, class T>
HWY_INLINE void sum_all(const SumBlock<T>& block, double* sums, int64_t distance) {
  for (int64_t o = 0; o < block.outer; ++o) {
    const int64_t first = o * block.outer_step;
    const T* const from[] = {block.data + first, Term::kInputs > 1 ? block.second + first : nullptr};
    const double* const shift = Term::kValues > 0 ? block.shift + o * block.width : nullptr;
    if (block.width == 1 && block.step == 1) {
      double sum[Term::kSums];
      sum_row_block<Term>(from, block.terms, shift, sum);
      for (int64_t s = 0; s < Term::kSums; ++s) sums[s * distance + o] = sum[s];
    } else {
      const ColumnInput<T> in[] = {{from[0], block.step}, {from[1], block.step}};
      sum_columns_block<Term>(in, block.terms, block.width, &shift, sums + o * block.width, distance);
    }
  }
}

template <class T>
HWY_INLINE void sum_terms(Terms terms, const SumBlock<T>& block, double* sums, int64_t distance) {
  switch (terms) {
    case Terms::Elements:
      return sum_all<Elements>(block, sums, distance);
    case Terms::Squares:
      return sum_all<Squares>(block, sums, distance);
    case Terms::Moments:
      return sum_all<Moments>(block, sums, distance);
    case Terms::Products:
      return sum_all<Products>(block, sums, distance);
    case Terms::Factors:
      return sum_all<Factors>(block, sums, distance);
  }
}

void sum_floats(Terms terms, const SumBlock<float>& block, double* sums, int64_t distance) {
  sum_terms(terms, block, sums, distance);
}

void sum_doubles(Terms terms, const SumBlock<double>& block, double* sums, int64_t distance) {
  sum_terms(terms, block, sums, distance);
}

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tutti::kernels {

HWY_EXPORT(sum_floats);
HWY_EXPORT(sum_doubles);

void sum_block(Terms terms, const SumBlock<float>& block, double* sums, int64_t distance) {
  HWY_DYNAMIC_DISPATCH(sum_floats)(terms, block, sums, distance);
}

void sum_block(Terms terms, const SumBlock<double>& block, double* sums, int64_t distance) {
  HWY_DYNAMIC_DISPATCH(sum_doubles)(terms, block, sums, distance);
}

}  // namespace tutti::kernels
#endif

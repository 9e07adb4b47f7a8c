#include "tutti/kernels/softmax.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tutti/kernels/softmax.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "tutti/kernels/functions-inl.h"
#include "tutti/kernels/rows-inl.h"
#include "tutti/kernels/sums-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

struct RowTerms : AddedTerms<1, 0, 1> {
  template <class D, class V>
  static HWY_INLINE void make(D /*d*/, const V* x, const V* /*values*/, V* terms) {
    terms[0] = x[0];
  }
};

struct RowProducts : AddedTerms<2, 0, 1> {
  template <class D, class V>
  static HWY_INLINE void make(D /*d*/, const V* x, const V* /*values*/, V* terms) {
    terms[0] = hn::Mul(x[0], x[1]);
  }
};

// Writes exp(x - shift).
template <class T>
HWY_INLINE void exponentials(const T* x, T shift, T* out, int64_t length) {
  map_row<1>(&x, out, length, [shift](auto d, const auto* of) HWY_ATTR {
    return by_need<Exp>(d, hn::Sub(of[0], hn::Set(d, shift)));
  });
}

template <class T>
HWY_INLINE T logarithm_of(double sum) {
  const Tag<T> d;
  return hn::GetLane(Log::any(d, hn::Set(d, static_cast<T>(sum))));
}

template <class T>
HWY_INLINE void softmax_row(const T* x, T* out, int64_t length, T* logarithm) {
  const T shift = largest(x, length);
  exponentials(x, shift, out, length);
  const T* const terms = out;
  double sum = 0;
  sum_row<RowTerms>(&terms, length, nullptr, &sum);
  const T scale = static_cast<T>(1 / sum);
  if (logarithm != nullptr) *logarithm = shift + logarithm_of<T>(sum);
  map_row<1>(&terms, out, length,
             [scale](auto d, const auto* e) HWY_ATTR { return hn::Mul(e[0], hn::Set(d, scale)); });
}

template <class T>
HWY_INLINE void log_softmax_row(const T* x, T* out, int64_t length) {
  const T shift = largest(x, length);
  // A part of the row at a time, so that the result may be the operand.
  HWY_ALIGN T part[kBlockTerms];
  double sums[48];
  int64_t count = 0;
  for (int64_t i = 0, block = 0; i < length; i += kBlockTerms, ++block) {
    const int64_t terms = std::min(kBlockTerms, length - i);
    exponentials(x + i, shift, part, terms);
    const T* const from = part;
    sum_row_block<RowTerms>(&from, terms, nullptr, &sums[count++]);
    for (int64_t full = block; full % 2 == 1; full /= 2, --count) sums[count - 2] += sums[count - 1];
  }
  for (; count > 1; --count) sums[count - 2] += sums[count - 1];
  const T log = logarithm_of<T>(sums[0]);
  map_row<1>(&x, out, length, [shift, log](auto d, const auto* of) HWY_ATTR {
    return hn::Sub(hn::Sub(of[0], hn::Set(d, shift)), hn::Set(d, log));
  });
}

template <class T>
HWY_INLINE void softmax_backward_row(const T* const* in, T* out, int64_t length) {
  double sum = 0;
  sum_row<RowProducts>(in, length, nullptr, &sum);
  const T total = static_cast<T>(sum);
  map_row<2>(in, out, length, [total](auto d, const auto* of) HWY_ATTR {
    return hn::Mul(hn::Sub(of[0], hn::Set(d, total)), of[1]);
  });
}

template <class T>
HWY_INLINE void log_softmax_backward_row(const T* const* in, T* out, int64_t length) {
  double sum = 0;
  sum_row<RowTerms>(in, length, nullptr, &sum);
  const T total = static_cast<T>(sum);
  map_row<2>(in, out, length, [total](auto d, const auto* of) HWY_ATTR {
    return fused(d, hn::Neg(by_need<Exp>(d, of[1])), hn::Set(d, total), of[0]);
  });
}

template <class T>
HWY_INLINE void apply_rows(RowFunction function, const Rows<T>& of) {
  for (int64_t r = 0; r < of.rows; ++r) {
    const int64_t at = r * of.length;
    const T* const in[] = {of.in[0] + at, of.in[1] == nullptr ? nullptr : of.in[1] + at};
    switch (function) {
      case RowFunction::Softmax:
        softmax_row(in[0], of.out + at, of.length, of.logarithms == nullptr ? nullptr : of.logarithms + r);
        break;
      case RowFunction::LogSoftmax:
        log_softmax_row(in[0], of.out + at, of.length);
        break;
      case RowFunction::SoftmaxBackward:
        softmax_backward_row(in, of.out + at, of.length);
        break;
      case RowFunction::LogSoftmaxBackward:
        log_softmax_backward_row(in, of.out + at, of.length);
        break;
    }
  }
}

void apply_float_rows(RowFunction function, const Rows<float>& rows) { apply_rows(function, rows); }
void apply_double_rows(RowFunction function, const Rows<double>& rows) { apply_rows(function, rows); }

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tutti::kernels {

HWY_EXPORT(apply_float_rows);
HWY_EXPORT(apply_double_rows);

void apply(RowFunction function, const Rows<float>& rows) {
  HWY_DYNAMIC_DISPATCH(apply_float_rows)(function, rows);
}

void apply(RowFunction function, const Rows<double>& rows) {
  HWY_DYNAMIC_DISPATCH(apply_double_rows)(function, rows);
}

}  // namespace tutti::kernels
#endif

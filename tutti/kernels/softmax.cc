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

// Functions of columns

// Computes out = function(d, v) for all elements, where v are those of `in`, and then values of the columns.
template <int64_t kInputs, int64_t kValues, class T, class Function>
HWY_INLINE void map_columns(const SoftmaxColumns<T>& of, const T* const* in, const T* const* values,
                            const Function& function) {
  const T* operands[kInputs + kValues];
  for (int64_t v = 0; v < kValues; ++v) operands[kInputs + v] = values[v];
  for (int64_t i = 0; i < of.length; ++i) {
    for (int64_t j = 0; j < kInputs; ++j) operands[j] = in[j] + i * of.step;
    map_row<kInputs + kValues>(operands, of.out + i * of.step, of.width, function);
  }
}

// Sums the columns as sum_row() does a row.
template <class Term, class T>
HWY_INLINE void sum_columns(const SoftmaxColumns<T>& of, const T* const* in, double* sums) {
  double waiting[48][kStrip];
  int64_t count = 0;
  const auto join = [&](int64_t last) {
    for (int64_t c = 0; c < of.width; ++c) waiting[last - 1][c] += waiting[last][c];
  };
  for (int64_t i = 0, block = 0; i < of.length; i += kBlockTerms, ++block) {
    ColumnInput<T> from[Term::kInputs];
    for (int64_t j = 0; j < Term::kInputs; ++j) from[j] = {in[j] + i * of.step, of.step};
    sum_columns_block<Term>(from, std::min(kBlockTerms, of.length - i), of.width, nullptr, waiting[count++],
                            kStrip);
    for (int64_t full = block; full % 2 == 1; full /= 2) join(--count);
  }
  while (count > 1) join(--count);
  std::copy_n(waiting[0], of.width, sums);
}

// Writes the exponentials of x - shift to the result, and the largest elements to `shift`.
template <class T>
HWY_INLINE void sum_exponentials(const SoftmaxColumns<T>& of, T* shift, double* sums) {
  std::copy_n(of.in[0], of.width, shift);
  for (int64_t i = 1; i < of.length; ++i) {
    const T* const in[] = {shift, of.in[0] + i * of.step};
    map_row<2>(in, shift, of.width, [](auto /*d*/, const auto* v) HWY_ATTR { return hn::Max(v[0], v[1]); });
  }
  const T* const values[] = {shift};
  map_columns<1, 1>(of, of.in, values,
                    [](auto d, const auto* v) HWY_ATTR { return by_need<Exp>(d, hn::Sub(v[0], v[1])); });
  const T* const terms = of.out;
  sum_columns<RowTerms>(of, &terms, sums);
}

template <class T>
HWY_INLINE void softmax_columns(const SoftmaxColumns<T>& of) {
  T shift[kStrip];
  T scale[kStrip];
  double sums[kStrip];
  sum_exponentials(of, shift, sums);
  for (int64_t c = 0; c < of.width; ++c) scale[c] = static_cast<T>(1 / sums[c]);
  const T* const in[] = {of.out};
  const T* const values[] = {scale};
  map_columns<1, 1>(of, in, values, [](auto /*d*/, const auto* v) HWY_ATTR { return hn::Mul(v[0], v[1]); });
}

template <class T>
HWY_INLINE void log_softmax_columns(const SoftmaxColumns<T>& of) {
  T shift[kStrip];
  T logarithms[kStrip];
  double sums[kStrip];
  sum_exponentials(of, shift, sums);
  for (int64_t c = 0; c < of.width; ++c) logarithms[c] = static_cast<T>(sums[c]);
  const T* const rounded = logarithms;
  map_row<1>(&rounded, logarithms, of.width,
             [](auto d, const auto* v) HWY_ATTR { return Log::any(d, v[0]); });
  const T* const values[] = {shift, logarithms};
  map_columns<1, 2>(of, of.in, values,
                    [](auto /*d*/, const auto* v) HWY_ATTR { return hn::Sub(hn::Sub(v[0], v[1]), v[2]); });
}

template <class Term, class T>
HWY_INLINE void sum_gradients(const SoftmaxColumns<T>& of, T* totals) {
  double sums[kStrip];
  sum_columns<Term>(of, of.in, sums);
  for (int64_t c = 0; c < of.width; ++c) totals[c] = static_cast<T>(sums[c]);
}

template <class T>
HWY_INLINE void softmax_backward_columns(const SoftmaxColumns<T>& of) {
  T totals[kStrip];
  sum_gradients<RowProducts>(of, totals);
  const T* const values[] = {totals};
  map_columns<2, 1>(of, of.in, values,
                    [](auto /*d*/, const auto* v) HWY_ATTR { return hn::Mul(hn::Sub(v[0], v[2]), v[1]); });
}

template <class T>
HWY_INLINE void log_softmax_backward_columns(const SoftmaxColumns<T>& of) {
  T totals[kStrip];
  sum_gradients<RowTerms>(of, totals);
  const T* const values[] = {totals};
  map_columns<2, 1>(of, of.in, values, [](auto d, const auto* v) HWY_ATTR {
    return fused(d, hn::Neg(by_need<Exp>(d, v[1])), v[2], v[0]);
  });
}

template <class T>
HWY_INLINE void apply_columns(RowFunction function, const SoftmaxColumns<T>& of) {
  for (int64_t first = 0; first < of.width; first += kStrip) {
    const SoftmaxColumns<T> strip{{of.in[0] + first, of.in[1] == nullptr ? nullptr : of.in[1] + first},
                                  of.out + first,
                                  of.length,
                                  of.step,
                                  std::min(kStrip, of.width - first)};
    switch (function) {
      case RowFunction::Softmax:
        softmax_columns(strip);
        break;
      case RowFunction::LogSoftmax:
        log_softmax_columns(strip);
        break;
      case RowFunction::SoftmaxBackward:
        softmax_backward_columns(strip);
        break;
      case RowFunction::LogSoftmaxBackward:
        log_softmax_backward_columns(strip);
        break;
    }
  }
}

void apply_float_columns(RowFunction function, const SoftmaxColumns<float>& columns) {
  apply_columns(function, columns);
}
void apply_double_columns(RowFunction function, const SoftmaxColumns<double>& columns) {
  apply_columns(function, columns);
}
void apply_float_rows(RowFunction function, const Rows<float>& rows) { apply_rows(function, rows); }
void apply_double_rows(RowFunction function, const Rows<double>& rows) { apply_rows(function, rows); }

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tutti::kernels {

HWY_EXPORT(apply_float_rows);
HWY_EXPORT(apply_double_rows);
HWY_EXPORT(apply_float_columns);
HWY_EXPORT(apply_double_columns);

void apply(RowFunction function, const Rows<float>& rows) {
  HWY_DYNAMIC_DISPATCH(apply_float_rows)(function, rows);
}

void apply(RowFunction function, const Rows<double>& rows) {
  HWY_DYNAMIC_DISPATCH(apply_double_rows)(function, rows);
}

void apply(RowFunction function, const SoftmaxColumns<float>& columns) {
  HWY_DYNAMIC_DISPATCH(apply_float_columns)(function, columns);
}

void apply(RowFunction function, const SoftmaxColumns<double>& columns) {
  HWY_DYNAMIC_DISPATCH(apply_double_columns)(function, columns);
}

}  // namespace tutti::kernels
#endif

#include "tutti/kernels/normalisations.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tutti/kernels/normalisations.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "tutti/kernels/rows-inl.h"
#include "tutti/kernels/sums-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

struct LayerMoments : AddedTerms<1, 1, 2> {
  template <class D, class V>
  static HWY_INLINE void make(D /*d*/, const V* x, const V* values, V* terms) {
    terms[0] = hn::Sub(x[0], values[0]);
    terms[1] = hn::Mul(terms[0], terms[0]);
  }
};

// Of x, the gradient and the weight; the value is the mean.
struct LayerProducts : AddedTerms<3, 1, 2> {
  template <class D, class V>
  static HWY_INLINE void make(D /*d*/, const V* x, const V* values, V* terms) {
    terms[0] = hn::Mul(x[1], x[2]);
    terms[1] = hn::Mul(terms[0], hn::Sub(x[0], values[0]));
  }
};

// Of x, the gradient, and the mean and the scale of the row.
struct ColumnProducts : AddedTerms<4, 0, 2> {
  static constexpr int64_t kColumns = 2;
  template <class D, class V>
  static HWY_INLINE void make(D /*d*/, const V* x, const V* /*values*/, V* terms) {
    terms[0] = x[1];
    terms[1] = hn::Mul(hn::Mul(x[1], hn::Sub(x[0], x[2])), x[3]);
  }
};

template <class T>
HWY_INLINE void normalise_rows(const LayerRows<T>& of) {
  const auto terms = static_cast<double>(of.length);
  for (int64_t r = 0; r < of.rows; ++r) {
    const T* const x = of.x + r * of.length;
    const double shift = x[0];
    double sums[2];
    sum_row<LayerMoments>(&x, of.length, &shift, sums);
    const double rest = sums[1] - sums[0] * (sums[0] / terms);
    const double variance = rest < 0 ? 0 : rest / terms;
    const T mean = static_cast<T>(shift + sums[0] / terms);
    const T scale = static_cast<T>(1 / std::sqrt(variance + of.eps));
    of.mean[r] = mean;
    of.scale[r] = scale;
    const T* const in[] = {x, of.weight, of.bias};
    map_row<3>(in, of.out + r * of.length, of.length, [mean, scale](auto d, const auto* v) HWY_ATTR {
      return fused(d, hn::Mul(hn::Sub(v[0], hn::Set(d, mean)), hn::Set(d, scale)), v[1], v[2]);
    });
  }
}

template <class T>
HWY_INLINE void differentiate_rows(const LayerGradientRows<T>& of) {
  const auto terms = static_cast<double>(of.length);
  for (int64_t r = 0; r < of.rows; ++r) {
    const T* const in[] = {of.x + r * of.length, of.gradient + r * of.length, of.weight};
    const T mean = of.mean[r];
    const T scale = of.scale[r];
    const double shift = mean;
    const double factor = scale;
    double sums[2];
    sum_row<LayerProducts>(in, of.length, &shift, sums);
    const T slope = static_cast<T>(-factor * factor * factor * sums[1] / terms);
    const T offset = static_cast<T>(-factor * sums[0] / terms);
    map_row<3>(in, of.out + r * of.length, of.length,
               [mean, scale, slope, offset](auto d, const auto* v) HWY_ATTR {
                 const auto rest = fused(d, hn::Mul(v[1], v[2]), hn::Set(d, scale), hn::Set(d, offset));
                 return fused(d, hn::Sub(v[0], hn::Set(d, mean)), hn::Set(d, slope), rest);
               });
  }
}

template <class T>
HWY_INLINE void sum_parameter_columns(const LayerColumns<T>& of, double* sums, int64_t distance) {
  const ColumnInput<T> in[] = {{of.x, of.step}, {of.gradient, of.step}, {of.mean, 1}, {of.scale, 1}};
  sum_columns_block<ColumnProducts>(in, of.rows, of.width, nullptr, sums, distance);
}

template <class T>
HWY_INLINE void scale_rows(const ScaledRows<T>& of) {
  int64_t at = of.first % of.count;
  for (int64_t r = 0; r < of.rows; ++r, at = at + 1 == of.count ? 0 : at + 1) {
    const T* const x = of.x + r * of.step;
    T* const out = of.out + r * of.step;
    if (of.values_of_rows) {
      const T shift = of.values[0][at];
      const T factor = of.values[1][at];
      const T bias = of.values[2][at];
      map_row<1>(&x, out, of.length, [shift, factor, bias](auto d, const auto* v) HWY_ATTR {
        return fused(d, hn::Sub(v[0], hn::Set(d, shift)), hn::Set(d, factor), hn::Set(d, bias));
      });
    } else {
      const T* const in[] = {x, of.values[0], of.values[1], of.values[2]};
      map_row<4>(in, out, of.length,
                 [](auto d, const auto* v) HWY_ATTR { return fused(d, hn::Sub(v[0], v[1]), v[2], v[3]); });
    }
  }
}

template <class T>
HWY_INLINE void differentiate_scaled_rows(const ScaledRows<T>& of) {
  int64_t at = of.first % of.count;
  for (int64_t r = 0; r < of.rows; ++r, at = at + 1 == of.count ? 0 : at + 1) {
    const T* const x = of.x + r * of.step;
    const T* const gradient = of.gradient + r * of.step;
    T* const out = of.out + r * of.step;
    if (of.values_of_rows) {
      const T shift = of.values[0][at];
      const T slope = of.values[1][at];
      const T factor = of.values[2][at];
      const T offset = of.values[3][at];
      const T* const in[] = {x, gradient};
      map_row<2>(in, out, of.length, [shift, slope, factor, offset](auto d, const auto* v) HWY_ATTR {
        const auto rest = fused(d, v[1], hn::Set(d, factor), hn::Set(d, offset));
        return fused(d, hn::Sub(v[0], hn::Set(d, shift)), hn::Set(d, slope), rest);
      });
    } else {
      const T* const in[] = {x, gradient, of.values[0], of.values[1], of.values[2], of.values[3]};
      map_row<6>(in, out, of.length, [](auto d, const auto* v) HWY_ATTR {
        return fused(d, hn::Sub(v[0], v[2]), v[3], fused(d, v[1], v[4], v[5]));
      });
    }
  }
}

template <class T>
HWY_INLINE void apply_to_rows(Normalisation normalisation, const ScaledRows<T>& rows) {
  return normalisation == Normalisation::Forward ? scale_rows(rows) : differentiate_scaled_rows(rows);
}

void normalise_floats(const LayerRows<float>& rows) { normalise_rows(rows); }
void normalise_doubles(const LayerRows<double>& rows) { normalise_rows(rows); }
void differentiate_floats(const LayerGradientRows<float>& rows) { differentiate_rows(rows); }
void differentiate_doubles(const LayerGradientRows<double>& rows) { differentiate_rows(rows); }
void sum_float_columns(const LayerColumns<float>& columns, double* sums, int64_t distance) {
  sum_parameter_columns(columns, sums, distance);
}
void sum_double_columns(const LayerColumns<double>& columns, double* sums, int64_t distance) {
  sum_parameter_columns(columns, sums, distance);
}
void apply_floats(Normalisation normalisation, const ScaledRows<float>& rows) {
  apply_to_rows(normalisation, rows);
}
void apply_doubles(Normalisation normalisation, const ScaledRows<double>& rows) {
  apply_to_rows(normalisation, rows);
}

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tutti::kernels {

HWY_EXPORT(normalise_floats);
HWY_EXPORT(normalise_doubles);
HWY_EXPORT(differentiate_floats);
HWY_EXPORT(differentiate_doubles);
HWY_EXPORT(sum_float_columns);
HWY_EXPORT(sum_double_columns);
HWY_EXPORT(apply_floats);
HWY_EXPORT(apply_doubles);

void normalise(const LayerRows<float>& rows) { HWY_DYNAMIC_DISPATCH(normalise_floats)(rows); }
void normalise(const LayerRows<double>& rows) { HWY_DYNAMIC_DISPATCH(normalise_doubles)(rows); }

void differentiate(const LayerGradientRows<float>& rows) { HWY_DYNAMIC_DISPATCH(differentiate_floats)(rows); }
void differentiate(const LayerGradientRows<double>& rows) {
  HWY_DYNAMIC_DISPATCH(differentiate_doubles)(rows);
}

void sum_columns(const LayerColumns<float>& columns, double* sums, int64_t distance) {
  HWY_DYNAMIC_DISPATCH(sum_float_columns)(columns, sums, distance);
}
void sum_columns(const LayerColumns<double>& columns, double* sums, int64_t distance) {
  HWY_DYNAMIC_DISPATCH(sum_double_columns)(columns, sums, distance);
}

void apply(Normalisation normalisation, const ScaledRows<float>& rows) {
  HWY_DYNAMIC_DISPATCH(apply_floats)(normalisation, rows);
}
void apply(Normalisation normalisation, const ScaledRows<double>& rows) {
  HWY_DYNAMIC_DISPATCH(apply_doubles)(normalisation, rows);
}

}  // namespace tutti::kernels
#endif

#include "tutti/kernels/scatters.h"

#include <algorithm>
#include <cmath>
#include <hwy/cache_control.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tutti/kernels/scatters.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "tutti/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

// Sums columns from `column` on, as many as `kVectors` vectors have.
template <int64_t kVectors, class D, class T>
HWY_INLINE void sum_columns(D d, const GatheredRows<T>& of, int64_t column) {
  constexpr auto kWide = static_cast<int64_t>(hn::MaxLanes(D()));
  constexpr int64_t kAhead = 8;  // rows that are fetched before they are needed
  hn::Vec<D> sums[kVectors];
  TUTTI_UNROLL for (int64_t v = 0; v < kVectors; ++v) sums[v] = hn::Zero(d);
  for (int64_t i = 0; i < of.count; ++i) {
    if (i + kAhead < of.count)
      hwy::Prefetch(of.table + std::max<int64_t>(0, of.indices[i + kAhead]) * of.width + column);
    if (of.indices[i] < 0) continue;
    const T* const row = of.table + of.indices[i] * of.width + column;
    const auto scale = hn::Set(d, of.scales == nullptr ? T(1) : of.scales[i]);
    TUTTI_UNROLL for (int64_t v = 0; v < kVectors; ++v) sums[v] =
        fused(d, scale, hn::LoadU(d, row + v * kWide), sums[v]);
  }
  TUTTI_UNROLL for (int64_t v = 0; v < kVectors; ++v) hn::StoreU(sums[v], d, of.out + column + v * kWide);
}

template <class T>
HWY_INLINE void sum_all_rows(const GatheredRows<T>& of) {
  const Tag<T> d;
  const hn::CappedTag<T, 1> single;
  int64_t c = 0;
  for (; c + 4 * kLanes<T> <= of.width; c += 4 * kLanes<T>) sum_columns<4>(d, of, c);
  for (; c + kLanes<T> <= of.width; c += kLanes<T>) sum_columns<1>(d, of, c);
  for (; c < of.width; ++c) sum_columns<1>(single, of, c);
}

template <class T>
HWY_INLINE void add_all_rows(const ScatteredRows<T>& of) {
  const Tag<T> d;
  for (int64_t i = 0; i < of.count; ++i) {
    if (of.targets[i] < of.first || of.targets[i] >= of.last) continue;
    const T* const from = of.from + (of.sources == nullptr ? i : of.sources[i]) * of.width;
    T* const to = of.to + of.targets[i] * of.width;
    const T scale = of.scales == nullptr ? T(1) : of.scales[i];
    const auto scales = hn::Set(d, scale);
    int64_t c = 0;
    for (; c + kLanes<T> <= of.width; c += kLanes<T>)
      hn::StoreU(fused(d, scales, hn::LoadU(d, from + c), hn::LoadU(d, to + c)), d, to + c);
    for (; c < of.width; ++c) to[c] = std::fma(scale, from[c], to[c]);
  }
}

void sum_float_rows(const GatheredRows<float>& rows) { sum_all_rows(rows); }
void sum_double_rows(const GatheredRows<double>& rows) { sum_all_rows(rows); }
void add_float_rows(const ScatteredRows<float>& rows) { add_all_rows(rows); }
void add_double_rows(const ScatteredRows<double>& rows) { add_all_rows(rows); }

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tutti::kernels {

HWY_EXPORT(sum_float_rows);
HWY_EXPORT(sum_double_rows);
HWY_EXPORT(add_float_rows);
HWY_EXPORT(add_double_rows);

void sum_rows(const GatheredRows<float>& rows) { HWY_DYNAMIC_DISPATCH(sum_float_rows)(rows); }
void sum_rows(const GatheredRows<double>& rows) { HWY_DYNAMIC_DISPATCH(sum_double_rows)(rows); }
void add_rows(const ScatteredRows<float>& rows) { HWY_DYNAMIC_DISPATCH(add_float_rows)(rows); }
void add_rows(const ScatteredRows<double>& rows) { HWY_DYNAMIC_DISPATCH(add_double_rows)(rows); }

}  // namespace tutti::kernels
#endif

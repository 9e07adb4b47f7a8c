// The words in which the kernels are written, for each of Highway's targets. Included once per target, after
// hwy/foreach_target.h.
#if defined(TUTTI_KERNELS_SIMD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TUTTI_KERNELS_SIMD_INL_H
#undef TUTTI_KERNELS_SIMD_INL_H
#else
#define TUTTI_KERNELS_SIMD_INL_H
#endif

#include <cmath>
#include <cstddef>

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Returns a * b + c with one rounding, on every target: where the processor cannot do that, one lane after the
// other, which is slow.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V fused(D d, V a, V b, V c) {
#if HWY_NATIVE_FMA
  static_cast<void>(d);
  return hn::MulAdd(a, b, c);
#else
  using T = hn::TFromD<D>;
  HWY_ALIGN T x[hn::MaxLanes(D())];
  HWY_ALIGN T y[hn::MaxLanes(D())];
  HWY_ALIGN T z[hn::MaxLanes(D())];
  hn::Store(a, d, x);
  hn::Store(b, d, y);
  hn::Store(c, d, z);
  for (size_t i = 0; i < hn::Lanes(d); ++i) z[i] = std::fma(x[i], y[i], z[i]);
  return hn::Load(d, z);
#endif
}

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

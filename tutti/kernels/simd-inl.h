// The vector operations of the kernels, for each of Highway's targets. Included once per target, after
// hwy/foreach_target.h.
#if defined(TUTTI_KERNELS_SIMD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TUTTI_KERNELS_SIMD_INL_H
#undef TUTTI_KERNELS_SIMD_INL_H
#else
#define TUTTI_KERNELS_SIMD_INL_H
#endif

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <hwy/highway.h>

// Before a loop of a fixed length: its variables are kept in registers.
#ifndef TUTTI_UNROLL
#ifdef __clang__
#define TUTTI_UNROLL _Pragma("clang loop unroll(full)")
#else
#define TUTTI_UNROLL _Pragma("GCC unroll 16")
#endif
#endif

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// A whole vector: 16 floats with AVX-512, 8 with AVX2, 4 with SSE and NEON. Never longer than 64 bytes.
template <class T>
using Tag = hn::CappedTag<T, 64 / sizeof(T)>;
template <class T>
using Vector = hn::Vec<Tag<T>>;
template <class T>
inline constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(Tag<T>()));

// Returns a * b + c with one rounding, on every target. Processors without such an instruction compute one
// lane after the other, which is slow.
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

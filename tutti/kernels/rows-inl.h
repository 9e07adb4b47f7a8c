// Functions of the elements of a row, for each of Highway's targets. Included once per target, after
// hwy/foreach_target.h.
#if defined(TUTTI_KERNELS_ROWS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TUTTI_KERNELS_ROWS_INL_H
#undef TUTTI_KERNELS_ROWS_INL_H
#else
#define TUTTI_KERNELS_ROWS_INL_H
#endif

#include <cstdint>

#include "tutti/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

// Returns the first `count` elements, fewer than a vector has, and zeros. Memory behind them is not read.
template <class D, class T>
HWY_INLINE hn::Vec<D> load_first(D d, const T* from, int64_t count) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  return hn::MaskedLoad(hn::FirstN(d, static_cast<size_t>(count)), d, from);
#else
  HWY_ALIGN T first[hn::MaxLanes(D())] = {};
  for (int64_t i = 0; i < count; ++i) first[i] = from[i];
  return hn::Load(d, first);
#endif
}

// Stores the first `count` elements.
template <class D, class T>
HWY_INLINE void store_first(hn::Vec<D> elements, D d, T* to, int64_t count) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  hn::BlendedStore(elements, hn::FirstN(d, static_cast<size_t>(count)), d, to);
#else
  HWY_ALIGN T first[hn::MaxLanes(D())];
  hn::Store(elements, d, first);
  for (int64_t i = 0; i < count; ++i) to[i] = first[i];
#endif
}

// Computes out[i] = function(d, x) for a row, where x are the vectors of elements i of `kInputs` operands.
template <int64_t kInputs, class T, class Function>
HWY_INLINE void map_row(const T* const* in, T* out, int64_t length, const Function& function) {
  const Tag<T> d;
  Vector<T> x[kInputs];
  int64_t i = 0;
  for (; i + kLanes<T> <= length; i += kLanes<T>) {
    TUTTI_UNROLL for (int64_t j = 0; j < kInputs; ++j) x[j] = hn::LoadU(d, in[j] + i);
    hn::StoreU(function(d, x), d, out + i);
  }
  if (i == length) return;
  TUTTI_UNROLL for (int64_t j = 0; j < kInputs; ++j) x[j] = load_first(d, in[j] + i, length - i);
  store_first(function(d, x), d, out + i, length - i);
}

// Returns the largest element of a row, which must not be empty. If there is a NaN, any element.
template <class T>
HWY_INLINE T largest(const T* row, int64_t length) {
  const Tag<T> d;
  if (length < kLanes<T>) {
    const auto is_element = hn::FirstN(d, static_cast<size_t>(length));
    const auto elements = hn::IfThenElse(is_element, load_first(d, row, length), hn::Set(d, row[0]));
    return hn::GetLane(hn::MaxOfLanes(d, elements));
  }
  Vector<T> most[2] = {hn::LoadU(d, row), hn::LoadU(d, row + length - kLanes<T>)};
  int64_t i = kLanes<T>;
  for (; i + 2 * kLanes<T> <= length; i += 2 * kLanes<T>) {
    most[0] = hn::Max(most[0], hn::LoadU(d, row + i));
    most[1] = hn::Max(most[1], hn::LoadU(d, row + i + kLanes<T>));
  }
  for (; i + kLanes<T> <= length; i += kLanes<T>) most[0] = hn::Max(most[0], hn::LoadU(d, row + i));
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(most[0], most[1])));
}

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

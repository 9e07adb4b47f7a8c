// Loops over elements, in each of Highway's targets. Included once per target, after hwy/foreach_target.h.
#if defined(TUTTI_KERNELS_ELEMENTS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TUTTI_KERNELS_ELEMENTS_INL_H
#undef TUTTI_KERNELS_ELEMENTS_INL_H
#else
#define TUTTI_KERNELS_ELEMENTS_INL_H
#endif

#include <algorithm>
#include <cstdint>
#include <hwy/highway.h>
#include <limits>

#include "tutti/kernels/functions.h"
#include "tutti/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

// Calls compute(operands, result, i) for places i that are the beginnings of vectors which cover elements
// `first` to the last. The last ones are computed in a buffer.
template <int kOperands, class T, class Compute>
HWY_INLINE void by_vectors(const Elements<T>& elements, int64_t first, int64_t width,
                           const Compute& compute) {
  int64_t i = first;
  for (; i + width <= elements.count; i += width) compute(elements.in, elements.out, i);
  if (i == elements.count) return;
  HWY_ALIGN T buffers[kOperands][kLanes<T>] = {};
  const T* in[3] = {};
  for (int operand = 0; operand < kOperands; ++operand) {
    std::copy(elements.in[operand] + i, elements.in[operand] + elements.count, buffers[operand]);
    in[operand] = buffers[operand];
  }
  compute(in, buffers[0], 0);
  std::copy_n(buffers[0], elements.count - i, elements.out + i);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V with_one_nan(D d, V x) {
  return hn::IfThenElse(hn::Eq(x, x), x, hn::Set(d, std::numeric_limits<hn::TFromD<D>>::quiet_NaN()));
}

// Computes function(d, x) for all elements from `first` on, with the operands x[0], x[1] ...
template <int kOperands, class T, class F>
HWY_INLINE void for_each(const Elements<T>& elements, const F& function, int64_t first = 0) {
  const Tag<T> d;
  by_vectors<kOperands>(elements, first, kLanes<T>, [&](const T* const* in, T* out, int64_t i) HWY_ATTR {
    Vector<T> x[kOperands];
    for (int k = 0; k < kOperands; ++k) x[k] = hn::LoadU(d, in[k] + i);
    hn::StoreU(with_one_nan(d, function(d, x)), d, out + i);
  });
}

// Rounds to floats. Highway's targets without vectors make the largest float of a larger double.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void store_as_floats([[maybe_unused]] D d, V x, float* out) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
  HWY_ALIGN double all[kLanes<double>];
  hn::Store(x, d, all);
  for (int64_t i = 0; i < kLanes<double>; ++i) out[i] = static_cast<float>(all[i]);
#else
  const hn::Rebind<float, D> stored;
  hn::StoreU(hn::DemoteTo(stored, x), stored, out);
#endif
}

// Computes function(d, x) in doubles, whatever the type of the elements.
template <int kOperands, class T, class F>
HWY_INLINE void for_each_in_doubles(const Elements<T>& elements, const F& function) {
  const Tag<double> d;
  const hn::Rebind<T, Tag<double>> stored;
  by_vectors<kOperands>(elements, 0, kLanes<double>, [&](const T* const* in, T* out, int64_t i) HWY_ATTR {
    Vector<double> x[kOperands];
    if constexpr (sizeof(T) == sizeof(double)) {
      for (int k = 0; k < kOperands; ++k) x[k] = hn::LoadU(d, in[k] + i);
      hn::StoreU(with_one_nan(d, function(d, x)), d, out + i);
    } else {
      for (int k = 0; k < kOperands; ++k) x[k] = hn::PromoteTo(d, hn::LoadU(stored, in[k] + i));
      store_as_floats(d, with_one_nan(d, function(d, x)), out + i);
    }
  });
}

// Computes function(d, x) of a vector of floats in doubles.
template <class D, class V, class F>
HWY_INLINE V in_doubles(D d, V x, const F& function) {
  HWY_ALIGN float all[hn::MaxLanes(D())];
  hn::Store(x, d, all);
  for_each_in_doubles<1>(Elements<float>{{all}, all, static_cast<int64_t>(hn::MaxLanes(D()))}, function);
  return hn::Load(d, all);
}

// Computes `Of`, which has a short formula for plain elements, four vectors at a time.
template <int kOperands, class Of, class T>
HWY_INLINE void for_each_of(const Elements<T>& elements) {
  const Tag<T> d;
  constexpr int64_t kVectors = 4;
  int64_t i = 0;
  for (; i + kVectors * kLanes<T> <= elements.count; i += kVectors * kLanes<T>) {
    Vector<T> x[kVectors][kOperands];
    TUTTI_UNROLL
    for (int64_t v = 0; v < kVectors; ++v) {
      TUTTI_UNROLL
      for (int k = 0; k < kOperands; ++k) x[v][k] = hn::LoadU(d, elements.in[k] + i + v * kLanes<T>);
    }
    const auto low = hn::And(Of::is_plain(d, x[0]), Of::is_plain(d, x[1]));
    const auto high = hn::And(Of::is_plain(d, x[2]), Of::is_plain(d, x[3]));
    if (HWY_LIKELY(hn::AllTrue(d, hn::And(low, high)))) {
      TUTTI_UNROLL
      for (int64_t v = 0; v < kVectors; ++v)
        hn::StoreU(Of::plain(d, x[v]), d, elements.out + i + v * kLanes<T>);
    } else {
      for (int64_t v = 0; v < kVectors; ++v)
        hn::StoreU(with_one_nan(d, Of::any(d, x[v])), d, elements.out + i + v * kLanes<T>);
    }
  }
  for_each<kOperands>(
      elements, [](auto tag, const auto* one) HWY_ATTR { return Of::any(tag, one); }, i);
}

// A function of one operand, for the loop above.
template <class F>
struct OfOne {
  template <class D, class V>
  static HWY_INLINE hn::Mask<D> is_plain(D d, const V* x) {
    return F::is_plain(d, x[0]);
  }
  template <class D, class V>
  static HWY_INLINE V plain(D d, const V* x) {
    return F::plain(d, x[0]);
  }
  template <class D, class V>
  static HWY_INLINE V any(D d, const V* x) {
    return F::any(d, x[0]);
  }
};

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

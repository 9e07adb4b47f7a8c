#include "tutti/kernels/adam.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tutti/kernels/adam.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "tutti/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

// Makes the step of the elements from `first` on, as many as there are whole vectors. Returns the first
// element that is left.
template <class D, class T>
HWY_INLINE int64_t step_vectors(D d, const AdamStep<T>& of, int64_t first) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto set = [&](double value) HWY_ATTR { return hn::Set(d, static_cast<T>(value)); };
  const auto shrink = set(of.shrink);
  const auto decay = set(of.decay);
  const auto beta1 = set(of.beta1);
  const auto beta2 = set(of.beta2);
  const auto newest1 = set(1 - of.beta1);
  const auto newest2 = set(1 - of.beta2);
  const auto correction = set(of.correction);
  const auto eps = set(of.eps);
  const auto factor = set(of.factor);
  const T* const old_average = of.old_average != nullptr ? of.old_average : of.average;
  const T* const old_squares = of.old_squares != nullptr ? of.old_squares : of.squares;
  int64_t i = first;
  for (; i + lanes <= of.count; i += lanes) {
    const auto values = hn::Mul(hn::LoadU(d, of.values + i), shrink);
    auto gradient = hn::LoadU(d, of.gradient + i);
    if (of.decay != 0) gradient = fused(d, decay, values, gradient);
    const auto average = fused(d, newest1, gradient, hn::Mul(hn::LoadU(d, old_average + i), beta1));
    const auto squares =
        fused(d, hn::Mul(newest2, gradient), gradient, hn::Mul(hn::LoadU(d, old_squares + i), beta2));
    const auto scale = hn::Add(hn::Div(hn::Sqrt(squares), correction), eps);
    hn::StoreU(average, d, of.average + i);
    hn::StoreU(squares, d, of.squares + i);
    hn::StoreU(hn::Add(values, hn::Div(hn::Mul(factor, average), scale)), d, of.values + i);
  }
  return i;
}

template <class T>
HWY_INLINE void step_all(const AdamStep<T>& of) {
  const int64_t rest = step_vectors(Tag<T>(), of, 0);
  step_vectors(hn::CappedTag<T, 1>(), of, rest);
}

void adam_step_of_floats(const AdamStep<float>& of) { step_all(of); }
void adam_step_of_doubles(const AdamStep<double>& of) { step_all(of); }

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tutti::kernels {

HWY_EXPORT(adam_step_of_floats);
HWY_EXPORT(adam_step_of_doubles);

void make_adam_step(const AdamStep<float>& step) { HWY_DYNAMIC_DISPATCH(adam_step_of_floats)(step); }
void make_adam_step(const AdamStep<double>& step) { HWY_DYNAMIC_DISPATCH(adam_step_of_doubles)(step); }

}  // namespace tutti::kernels
#endif

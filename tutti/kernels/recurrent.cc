#include "tutti/kernels/recurrent.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tutti/kernels/recurrent.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "tutti/kernels/elements-inl.h"
#include "tutti/kernels/functions-inl.h"
#include "tutti/kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

template <class F, class T>
HWY_INLINE void map_elements(const T* in, T* out, int64_t count) {
  for_each_of<1, OfOne<F>>(Elements<T>{{in}, out, count});
}

template <class T>
HWY_INLINE void step_rows(const LstmStep<T>& of, int64_t first, int64_t last) {
  const int64_t width = of.width;
  for (int64_t r = first; r < last; ++r) {
    T* const gates = of.gates + r * 4 * width;
    T* const cells = of.cells + r * width;
    T* const tanh_cells = of.tanh_cells + r * width;
    const T* const parts[] = {of.from_hidden + r * 4 * width, of.from_input + r * 4 * width};
    map_row<2>(parts, gates, 4 * width, [](auto, const auto* x) HWY_ATTR { return hn::Add(x[0], x[1]); });
    map_elements<Sigmoid>(gates, gates, 2 * width);
    map_elements<Tanh>(gates + 2 * width, gates + 2 * width, width);
    map_elements<Sigmoid>(gates + 3 * width, gates + 3 * width, width);
    const T* const in[] = {gates, gates + width, gates + 2 * width, of.cells_before + r * width};
    map_row<4>(in, cells, width, [](auto, const auto* x) HWY_ATTR {
      return hn::Add(hn::Mul(x[1], x[3]), hn::Mul(x[0], x[2]));
    });
    map_elements<Tanh>(cells, tanh_cells, width);
    const T* const out[] = {gates + 3 * width, tanh_cells};
    map_row<2>(out, of.hidden + r * width, width,
               [](auto, const auto* x) HWY_ATTR { return hn::Mul(x[0], x[1]); });
  }
}

// The derivative of sigmoid and tanh, where y is their value and g the gradient of y.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V sigmoid_gradient(D d, V g, V y) {
  return hn::Mul(hn::Mul(g, hn::Sub(set(d, 1), y)), y);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V tanh_gradient(D d, V g, V y) {
  return hn::Mul(g, fused(d, hn::Neg(y), y, set(d, 1)));
}

template <class T>
HWY_INLINE void differentiate_rows(const LstmStepBackward<T>& of, int64_t first, int64_t last) {
  const int64_t width = of.width;
  for (int64_t r = first; r < last; ++r) {
    const T* const gates = of.gates + r * 4 * width;
    const T* const hidden = of.hidden_gradient + r * width;
    const T* const tanh_cells = of.tanh_cells + r * width;
    T* const cell = of.cell_gradient + r * width;
    T* const to = of.gates_gradient + r * 4 * width;
    const T* const i = gates;
    const T* const f = gates + width;
    const T* const g = gates + 2 * width;
    const T* const o = gates + 3 * width;
    const T* const of_output[] = {hidden, tanh_cells, o};
    map_row<3>(of_output, to + 3 * width, width,
               [](auto d, const auto* x) HWY_ATTR { return sigmoid_gradient(d, hn::Mul(x[0], x[1]), x[2]); });
    const T* const of_cells[] = {cell, hidden, tanh_cells, o};
    map_row<4>(of_cells, cell, width, [](auto d, const auto* x) HWY_ATTR {
      return hn::Add(x[0], tanh_gradient(d, hn::Mul(x[1], x[3]), x[2]));
    });
    const T* const of_input[] = {cell, g, i};
    map_row<3>(of_input, to, width,
               [](auto d, const auto* x) HWY_ATTR { return sigmoid_gradient(d, hn::Mul(x[0], x[1]), x[2]); });
    const T* const of_before[] = {cell, of.cells_before + r * width, f};
    map_row<3>(of_before, to + width, width,
               [](auto d, const auto* x) HWY_ATTR { return sigmoid_gradient(d, hn::Mul(x[0], x[1]), x[2]); });
    const T* const of_values[] = {cell, i, g};
    map_row<3>(of_values, to + 2 * width, width,
               [](auto d, const auto* x) HWY_ATTR { return tanh_gradient(d, hn::Mul(x[0], x[1]), x[2]); });
    const T* const before[] = {cell, f};
    map_row<2>(before, cell, width, [](auto, const auto* x) HWY_ATTR { return hn::Mul(x[0], x[1]); });
  }
}

void step_floats(const LstmStep<float>& of, int64_t first, int64_t last) { step_rows(of, first, last); }
void step_doubles(const LstmStep<double>& of, int64_t first, int64_t last) { step_rows(of, first, last); }
void differentiate_floats(const LstmStepBackward<float>& of, int64_t first, int64_t last) {
  differentiate_rows(of, first, last);
}
void differentiate_doubles(const LstmStepBackward<double>& of, int64_t first, int64_t last) {
  differentiate_rows(of, first, last);
}

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tutti::kernels {

HWY_EXPORT(step_floats);
HWY_EXPORT(step_doubles);
HWY_EXPORT(differentiate_floats);
HWY_EXPORT(differentiate_doubles);

void step_lstm(const LstmStep<float>& step, int64_t first, int64_t last) {
  HWY_DYNAMIC_DISPATCH(step_floats)(step, first, last);
}

void step_lstm(const LstmStep<double>& step, int64_t first, int64_t last) {
  HWY_DYNAMIC_DISPATCH(step_doubles)(step, first, last);
}

void differentiate_lstm(const LstmStepBackward<float>& step, int64_t first, int64_t last) {
  HWY_DYNAMIC_DISPATCH(differentiate_floats)(step, first, last);
}

void differentiate_lstm(const LstmStepBackward<double>& step, int64_t first, int64_t last) {
  HWY_DYNAMIC_DISPATCH(differentiate_doubles)(step, first, last);
}

}  // namespace tutti::kernels
#endif

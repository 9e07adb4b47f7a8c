#pragma once

#include <cstdint>

namespace tutti::kernels {

// The functions of a row whose elements depend on all others.
//
// With m the largest element of x, e = exp(x - m), and s the sum of e, in the order of sums.h:
//   Softmax             e * (1 / s)
//   LogSoftmax          (x - m) - log(s)
// With g the gradient of the result y, and t the sum of g * y (for the logarithm: of g), in the same order:
//   SoftmaxBackward     (g - t) * y
//   LogSoftmaxBackward  fma(-exp(y), t, g)
// The terms of sums have the type of the row; s, 1 / s and t are rounded to it. exp and log are those of
// functions-inl.h.
enum class RowFunction { Softmax, LogSoftmax, SoftmaxBackward, LogSoftmaxBackward };

// Rows that lie one after the other, in the operands as in the result. The operands are x, or g and y. `out`
// may be the first operand.
template <class T>
struct Rows {
  const T* in[2];
  T* out;
  int64_t rows;
  int64_t length;
  T* logarithms = nullptr;  // of Softmax, if given: receives m + log(s) of each row
};

void apply(RowFunction function, const Rows<float>& rows);
void apply(RowFunction function, const Rows<double>& rows);

// `width` columns beside each other, in the operands as in the result, which lies elsewhere: element i of
// column c is i * step + c elements behind the first one. The results are those of rows.
template <class T>
struct SoftmaxColumns {
  const T* in[2];
  T* out;
  int64_t length;
  int64_t step;
  int64_t width;
};

void apply(RowFunction function, const SoftmaxColumns<float>& columns);
void apply(RowFunction function, const SoftmaxColumns<double>& columns);

}  // namespace tutti::kernels

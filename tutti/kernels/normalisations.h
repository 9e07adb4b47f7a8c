#pragma once

#include <cstdint>

namespace tutti::kernels {

// All sums here are made in the order of sums.h, of terms in the type of the operands. What is made of them
// is computed in doubles, and rounded to that type before it is used.

// Layer normalisation of rows. With m the mean of x and v its variance, made of sums of y = x - x[0] and of
// y * y, and r = 1 / sqrt(v + eps): out[i] = fma((x[i] - m) * r, weight[i], bias[i]).
template <class T>
struct LayerRows {
  const T* x;
  const T* weight;
  const T* bias;
  T* out;
  T* mean;
  T* scale;  // r
  int64_t rows;
  int64_t length;
  double eps;
};

void normalise(const LayerRows<float>& rows);
void normalise(const LayerRows<double>& rows);

// The gradient of x. With g the gradient of the result, y = x - m, n the length, s the sum of g * weight and
// t the sum of g * weight * y: out[i] = fma(y[i], -r r r t / n, fma(g[i] * weight[i], r, -r s / n)).
template <class T>
struct LayerGradientRows {
  const T* gradient;
  const T* x;
  const T* weight;
  const T* mean;
  const T* scale;
  T* out;
  int64_t rows;
  int64_t length;
};

void differentiate(const LayerGradientRows<float>& rows);
void differentiate(const LayerGradientRows<double>& rows);

// Sums of at most kBlockTerms rows, for the gradients of bias and weight: writes the sum of g of column c to
// sums[c], and the sum of g * (x - m) * r to sums[distance + c]. `step` is the distance of rows.
template <class T>
struct LayerColumns {
  const T* gradient;
  const T* x;
  const T* mean;
  const T* scale;
  int64_t rows;
  int64_t step;
  int64_t width;
};

void sum_columns(const LayerColumns<float>& columns, double* sums, int64_t distance);
void sum_columns(const LayerColumns<double>& columns, double* sums, int64_t distance);

// Batch and group normalisation, whose sums are made by tensor_sums.h. Forward computes
// out = fma(x - v0, v1, v2), and Backward fma(x - v0, v1, fma(g, v2, v3)), with g the gradient of the result.
enum class Normalisation { Forward, Backward };

// Rows at a distance of `step` elements. If the values are of rows, v of row r is values[r % count]; else v
// of column c is values[c], and count is the length.
template <class T>
struct ScaledRows {
  const T* x;
  const T* gradient;
  T* out;
  int64_t first;  // the row that `x` points to
  int64_t rows;
  int64_t length;
  int64_t step;
  const T* values[4];
  int64_t count;
  bool values_of_rows;
};

void apply(Normalisation normalisation, const ScaledRows<float>& rows);
void apply(Normalisation normalisation, const ScaledRows<double>& rows);

}  // namespace tutti::kernels

#pragma once

#include <cstdint>

namespace tutti::kernels {

// The elements of a matrix in memory: element (i, j) is data[i * row + j * column].
template <class T>
struct Matrix {
  T* data;
  int64_t row;
  int64_t column;
};

// The length of a chain of fused multiply-adds.
inline constexpr int64_t kChain = 256;

// The product of two matrices, out = beta * addend + alpha * (a b), of m x n elements, with k between.
//
// One order of operations for every processor and number of threads. With fma(x, y, z) = x y + z in one
// rounding, each element (i, j) is
//   chain(c) = fma(a[i][p], b[p][j], ... fma(a[i][p0], b[p0][j], 0)) over p0 = 256 c <= p < min(256 (c + 1), k)
//   sum      = ((chain(0) + chain(1)) + chain(2)) + ...
//   out      = sum                           if alpha is 1 and there is no addend
//              alpha * sum, then fma(beta, addend, alpha * sum)
// The multiplication by alpha is left out if alpha is 1, and the addend is not read if beta is 0. With k = 0
// the sum is 0. `out` may be the addend, but no other operand.
template <class T>
struct Product {
  int64_t m;
  int64_t n;
  int64_t k;
  Matrix<const T> a;
  Matrix<const T> b;
  Matrix<T> out;
  Matrix<const T> addend = {nullptr, 0, 0};
  T alpha = 1;
  T beta = 0;
};

// Computes the product in the calling thread.
void multiply(const Product<float>& product);
void multiply(const Product<double>& product);

}  // namespace tutti::kernels

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

// So few rows read the right operand in place: a copy would take longer than it saves.
inline constexpr int64_t kFewRows = 64;

// The product of two matrices, out = beta * addend + alpha * (a b), of m x n elements with k terms each.
//
// The order of operations is the same on every processor and with any number of threads. With fma(x, y, z) =
// x y + z in one rounding, each element (i, j) is computed as
//   chain(c) = fma(a[i][q], b[q][j], ... fma(a[i][p], b[p][j], 0)), where
//              p = 256 c is the first term of the chain and q = min(256 (c + 1), k) - 1 its last one
//   sum      = ((chain(0) + chain(1)) + chain(2)) + ...
//   scaled   = sum if alpha is 1, else alpha * sum
//   out      = scaled if beta is 0, else fma(beta, addend[i][j], scaled)
// With k = 0, the sum is 0. The addend is not read if beta is 0. `out` may not overlap an operand. Operands
// of bfloat16 and float16 are widened to float, and the result is rounded to their type once.
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

// Returns the product or its transpose, out' = beta * addend' + alpha * (b' a'), whichever is computed
// faster. A right operand whose columns lie together has to be copied. In the transpose, the left operand is
// copied instead, and so is the result.
template <class T>
Product<T> arranged(const Product<T>& product) {
  const bool fewer_copies = product.b.row == 1 && product.m * (product.k + product.n) < product.k * product.n;
  const bool transposes = product.n == 1 ? product.a.row == 1 && product.a.column != 1 : fewer_copies;
  if (!transposes) return product;
  const auto turned = [](auto matrix) { return decltype(matrix){matrix.data, matrix.column, matrix.row}; };
  return {product.n,
          product.m,
          product.k,
          turned(product.b),
          turned(product.a),
          turned(product.out),
          turned(product.addend),
          product.alpha,
          product.beta};
}

// A result of m x n elements, cut into blocks that threads compute independently. The cut does not change
// bits: each element is computed by one thread.
struct Cut {
  // Cuts so that the parts of operands that a block needs stay in the caches, and that each thread gets
  // several blocks. With `few`, because each block costs much to prepare, it may also get one.
  Cut(int64_t m, int64_t n, int64_t element_size, int64_t threads, bool few = false);
  int64_t count() const { return down * across; }

  int64_t rows;     // of a block
  int64_t columns;  // of a block
  int64_t down;     // blocks
  int64_t across;   // blocks
};

// Computes blocks `first` to `last` of the product, in the calling thread.
void multiply(const Product<float>& product, const Cut& cut, int64_t first, int64_t last);
void multiply(const Product<double>& product, const Cut& cut, int64_t first, int64_t last);

// Returns the sum of a[i * a_step] * b[i * b_step], as the product of one row and one column.
float dot(int64_t k, const float* a, int64_t a_step, const float* b, int64_t b_step);
double dot(int64_t k, const double* a, int64_t a_step, const double* b, int64_t b_step);

}  // namespace tutti::kernels

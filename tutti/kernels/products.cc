#include "tutti/kernels/products.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tutti/kernels/products.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "tutti/kernels/matrices-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

// Applies alpha, beta and the addend to a block of sums, whose first element is at `sums`.
template <class T>
void finish_block(const Product<T>& of, const Block<T>& block, T* sums, int64_t row) {
  if (of.alpha == T(1) && of.beta == T(0)) return;
  const Tag<T> d;
  const auto alpha = hn::Set(d, of.alpha);
  const auto beta = hn::Set(d, of.beta);
  const bool scales = of.alpha != T(1);
  const bool adds = of.beta != T(0);
  const int64_t columns = block.n1 - block.n0;
  for (int64_t i = block.m0; i < block.m1; ++i, sums += row) {
    const T* const addend = adds ? of.addend.data + i * of.addend.row + block.n0 * of.addend.column : nullptr;
    int64_t j = 0;
    if (!adds || of.addend.column <= 1) {
      for (; j + kLanes<T> <= columns; j += kLanes<T>) {
        auto value = hn::LoadU(d, sums + j);
        if (scales) value = hn::Mul(alpha, value);
        if (adds) {
          const auto added = of.addend.column == 1 ? hn::LoadU(d, addend + j) : hn::Set(d, *addend);
          value = fused(d, beta, added, value);
        }
        hn::StoreU(value, d, sums + j);
      }
    }
    for (; j < columns; ++j) {
      const T scaled = scales ? of.alpha * sums[j] : sums[j];
      sums[j] = adds ? std::fma(of.beta, addend[j * of.addend.column], scaled) : scaled;
    }
  }
}

template <class T>
HWY_INLINE void multiply_blocks(const Product<T>& of, const Cut& cut, int64_t first, int64_t last) {
  LeftMatrix<T> left(of.a);
  RightMatrix<T> right(of.b);
  for (int64_t i = first; i < last; ++i) {
    const int64_t m = i % cut.down * cut.rows;
    const int64_t n = i / cut.down * cut.columns;
    const Block<T> block(m, std::min(of.m, m + cut.rows), n, std::min(of.n, n + cut.columns));
    T* const to = of.out.data + m * of.out.row + n * of.out.column;
    const bool in_place = of.out.column == 1;
    const int64_t rows = block.m1 - m;
    const int64_t columns = block.n1 - n;
    const OutMatrix<T> out{in_place ? to : scratch<T>(Buffer::Result, rows * columns),
                           in_place ? of.out.row : columns, m, n};
    sum_block<T>(block, of.k, left, right, out);
    finish_block(of, block, out.data, out.row);
    if (in_place) continue;
    if (of.out.row == 1) {
      transpose(out.data, columns, columns, rows, to, of.out.column);
      continue;
    }
    for (int64_t c = 0; c < columns; ++c)
      for (int64_t r = 0; r < rows; ++r) to[r * of.out.row + c * of.out.column] = out.data[r * columns + c];
  }
}

void multiply_floats(const Product<float>& of, const Cut& cut, int64_t first, int64_t last) {
  multiply_blocks(of, cut, first, last);
}

void multiply_doubles(const Product<double>& of, const Cut& cut, int64_t first, int64_t last) {
  multiply_blocks(of, cut, first, last);
}

// Several chains are made side by side, since each of their additions waits for the one before it.
template <class T>
HWY_INLINE T dot(int64_t k, const T* a, int64_t a_step, const T* b, int64_t b_step) {
  constexpr int64_t kBeside = 8;
  T sum = 0;
  for (int64_t p0 = 0; p0 < k; p0 += kBeside * kChain) {
    const int64_t whole = std::min(kBeside, (k - p0) / kChain);  // chains of full length
    T chains[kBeside] = {};
    if (whole == kBeside) {
      for (int64_t p = 0; p < kChain; ++p) {
        TUTTI_UNROLL for (int64_t c = 0; c < kBeside; ++c) {
          const int64_t i = p0 + c * kChain + p;
          chains[c] = std::fma(a[i * a_step], b[i * b_step], chains[c]);
        }
      }
    } else {
      for (int64_t i = p0; i < k; ++i)
        chains[(i - p0) / kChain] = std::fma(a[i * a_step], b[i * b_step], chains[(i - p0) / kChain]);
    }
    const int64_t made = whole == kBeside ? kBeside : (k - p0 + kChain - 1) / kChain;
    for (int64_t c = 0; c < made; ++c) sum = p0 == 0 && c == 0 ? chains[c] : sum + chains[c];
  }
  return sum;
}

float dot_floats(int64_t k, const float* a, int64_t a_step, const float* b, int64_t b_step) {
  return dot(k, a, a_step, b, b_step);
}

double dot_doubles(int64_t k, const double* a, int64_t a_step, const double* b, int64_t b_step) {
  return dot(k, a, a_step, b, b_step);
}

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tutti::kernels {
namespace {

// Returns the size of equal parts of `whole`, multiples of `unit` of at most `most`.
int64_t part_of(int64_t whole, int64_t most, int64_t unit) {
  const int64_t parts = std::max<int64_t>(1, (whole + most - 1) / most);
  const int64_t part = (whole + parts - 1) / parts;
  return std::max(unit, (part + unit - 1) / unit * unit);
}

}  // namespace

Cut::Cut(int64_t m, int64_t n, int64_t element_size, int64_t threads, bool few) {
  // Multiples of the tiles of all targets.
  constexpr int64_t kRowUnit = 24;
  constexpr int64_t kColumnUnit = 32;
  constexpr int64_t kLeastColumns = 16;
  int64_t most_rows = 3072 / element_size;
  int64_t most_columns = 2048 / element_size;
  while (true) {
    rows = part_of(m, most_rows, kRowUnit);
    columns = part_of(n, most_columns, kColumnUnit);
    down = (m + rows - 1) / rows;
    across = (n + columns - 1) / columns;
    const bool by_rows = rows >= columns;
    if (threads == 1 || count() >= 3 * threads || (few && count() % threads == 0)) return;
    if (by_rows ? rows <= 2 * kRowUnit : columns <= 2 * kColumnUnit) break;
    (by_rows ? most_rows : most_columns) /= 2;
  }
  // Few rows and columns may still have many terms.
  if (count() >= threads) return;
  columns = part_of(n, std::max<int64_t>(1, n / threads), kLeastColumns);
  across = (n + columns - 1) / columns;
}

HWY_EXPORT(multiply_floats);
HWY_EXPORT(multiply_doubles);

void multiply(const Product<float>& product, const Cut& cut, int64_t first, int64_t last) {
  HWY_DYNAMIC_DISPATCH(multiply_floats)(product, cut, first, last);
}

void multiply(const Product<double>& product, const Cut& cut, int64_t first, int64_t last) {
  HWY_DYNAMIC_DISPATCH(multiply_doubles)(product, cut, first, last);
}

HWY_EXPORT(dot_floats);
HWY_EXPORT(dot_doubles);

float dot(int64_t k, const float* a, int64_t a_step, const float* b, int64_t b_step) {
  return HWY_DYNAMIC_DISPATCH(dot_floats)(k, a, a_step, b, b_step);
}

double dot(int64_t k, const double* a, int64_t a_step, const double* b, int64_t b_step) {
  return HWY_DYNAMIC_DISPATCH(dot_doubles)(k, a, a_step, b, b_step);
}

}  // namespace tutti::kernels
#endif

#include "tutti/kernels/products.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tutti/kernels/products.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "tutti/kernels/blocks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

// Rows of a matrix as the left operand. They are read in place if that is as fast as from a copy.
template <class T>
class LeftMatrix {
 public:
  explicit LeftMatrix(Matrix<const T> matrix)
      : matrix_(matrix), by_rows_(matrix.row != 1 || matrix.column == 1) {}

  void pack(int64_t p0, int64_t length, const Block& block, T* buffer) {
    first_ = block.m0;
    data_ = matrix_.data + block.m0 * matrix_.row + p0 * matrix_.column;
    in_place_ = block.n1 - block.n0 <= 2 * kColumns<T>;
    if (in_place_) return;
    packed_ = buffer;
    for (int64_t m = block.m0; m < block.m1; m += kRows, buffer += kLeftPanelSize<T>) {
      const int64_t count = std::min(kRows, block.m1 - m);
      const T* const from = matrix_.data + m * matrix_.row + p0 * matrix_.column;
      if (matrix_.column == 1) {
        for (int64_t r = 0; r < count; ++r)
          std::copy_n(from + r * matrix_.row, length, buffer + r * kRowStride<T>);
      } else if (by_rows_) {
        for (int64_t r = 0; r < count; ++r)
          for (int64_t p = 0; p < length; ++p)
            buffer[r * kRowStride<T> + p] = from[r * matrix_.row + p * matrix_.column];
      } else if (count == kRows) {
        for (int64_t p = 0; p < length; ++p)
          std::copy_n(from + p * matrix_.column, kRows, buffer + p * kRows);
      } else {
        for (int64_t p = 0; p < length; ++p)
          std::copy_n(from + p * matrix_.column, count, buffer + p * kRows);
      }
    }
  }

  LeftPanel<T> panel(int64_t m) const {
    if (in_place_) return {data_ + (m - first_) * matrix_.row, matrix_.row, matrix_.column};
    const T* const at = packed_ + (m - first_) / kRows * kLeftPanelSize<T>;
    return by_rows_ ? LeftPanel<T>{at, kRowStride<T>, 1} : LeftPanel<T>{at, 1, kRows};
  }

 private:
  const Matrix<const T> matrix_;
  const bool by_rows_;
  bool in_place_ = false;
  int64_t first_ = 0;
  const T* data_ = nullptr;
  const T* packed_ = nullptr;
};

// Columns of a matrix as the right operand. They are read in place if few rows use them.
template <class T>
class RightMatrix {
 public:
  explicit RightMatrix(Matrix<const T> matrix) : matrix_(matrix) {}

  void pack(int64_t p0, int64_t length, const Block& block, T* buffer) {
    first_ = block.n0;
    last_ = block.n1;
    data_ = matrix_.data + p0 * matrix_.row + block.n0 * matrix_.column;
    packed_ = buffer;
    in_place_ = matrix_.column == 1 && block.m1 - block.m0 <= 2 * kRows;
    const int64_t begin =
        in_place_ ? (block.n1 - block.n0) / kColumns<T> * kColumns<T> : 0;  // of what is packed
    buffer += begin * kChain;
    const int64_t end = block.n1 - block.n0;
    if (matrix_.column == 1) {
      for (int64_t p = 0; p < length; ++p) {
        const T* const from = data_ + p * matrix_.row;
        T* to = buffer + p * kColumns<T>;
        for (int64_t n = begin; n < end; n += kColumns<T>, to += kRightPanelSize<T>)
          copy_row(from + n, std::min(kColumns<T>, end - n), to);
      }
      return;
    }
    for (int64_t n = begin; n < end; n += kColumns<T>, buffer += kRightPanelSize<T>) {
      const int64_t count = std::min(kColumns<T>, end - n);
      const T* const from = data_ + n * matrix_.column;
      if (matrix_.row == 1) {
        transpose_into_panel(from, matrix_.column, length, count, buffer);
      } else {
        for (int64_t p = 0; p < length; ++p)
          for (int64_t j = 0; j < count; ++j)
            buffer[p * kColumns<T> + j] = from[p * matrix_.row + j * matrix_.column];
      }
    }
  }

  RightPanel<T> panel(int64_t n) const {
    if (in_place_ && n + kColumns<T> <= last_) return {data_ + (n - first_), matrix_.row};
    return {packed_ + (n - first_) * kChain, kColumns<T>};
  }

 private:
  const Matrix<const T> matrix_;
  bool in_place_ = false;
  int64_t first_ = 0;
  int64_t last_ = 0;
  const T* data_ = nullptr;
  const T* packed_ = nullptr;
};

template <class T>
struct OutMatrix {
  T* at(int64_t m, int64_t n) const { return data + m * row + n; }
  int64_t together(int64_t /*n*/) const { return kColumns<T>; }

  T* data;
  int64_t row;
};

// Applies alpha, beta and the addend to a block.
template <class T>
void finish_block(const Product<T>& of, const Block& block) {
  if (of.alpha == T(1) && of.beta == T(0)) return;
  const Tag<T> d;
  const auto alpha = hn::Set(d, of.alpha);
  const auto beta = hn::Set(d, of.beta);
  const bool scales = of.alpha != T(1);
  for (int64_t i = block.m0; i < block.m1; ++i) {
    T* const out = of.out.data + i * of.out.row;
    const T* const addend = of.beta == T(0) ? nullptr : of.addend.data + i * of.addend.row;
    int64_t j = block.n0;
    if (addend == nullptr || of.addend.column <= 1) {
      for (; j + kLanes<T> <= block.n1; j += kLanes<T>) {
        auto value = hn::LoadU(d, out + j);
        if (scales) value = hn::Mul(alpha, value);
        if (addend != nullptr) {
          const auto added = of.addend.column == 1 ? hn::LoadU(d, addend + j) : hn::Set(d, *addend);
          value = fused(d, beta, added, value);
        }
        hn::StoreU(value, d, out + j);
      }
    }
    for (; j < block.n1; ++j) {
      const T scaled = scales ? of.alpha * out[j] : out[j];
      out[j] = addend == nullptr ? scaled : std::fma(of.beta, addend[j * of.addend.column], scaled);
    }
  }
}

template <class T>
HWY_INLINE void multiply_blocks(const Product<T>& of, const Cut& cut, int64_t first, int64_t last) {
  LeftMatrix<T> left(of.a);
  RightMatrix<T> right(of.b);
  const OutMatrix<T> out{of.out.data, of.out.row};
  for (int64_t i = first; i < last; ++i) {
    const int64_t m = i % cut.down * cut.rows;
    const int64_t n = i / cut.down * cut.columns;
    const Block block{m, std::min(of.m, m + cut.rows), n, std::min(of.n, n + cut.columns)};
    sum_block<T>(block, of.k, left, right, out);
    finish_block(of, block);
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

Cut::Cut(int64_t m, int64_t n, int64_t element_size, int64_t threads) {
  // Multiples of the tiles of all targets.
  constexpr int64_t kRowUnit = 24;
  constexpr int64_t kColumnUnit = 32;
  int64_t most_rows = 1920 / element_size;
  int64_t most_columns = 1536 / element_size;
  while (true) {
    rows = part_of(m, most_rows, kRowUnit);
    columns = part_of(n, most_columns, kColumnUnit);
    down = (m + rows - 1) / rows;
    across = (n + columns - 1) / columns;
    const bool by_rows = rows >= columns;
    if (threads == 1 || count() >= 3 * threads ||
        (by_rows ? rows <= 2 * kRowUnit : columns <= 2 * kColumnUnit))
      return;
    (by_rows ? most_rows : most_columns) /= 2;
  }
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

// Matrices as operands of blocks-inl.h. Included once per target, after hwy/foreach_target.h.
#if defined(TUTTI_KERNELS_MATRICES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TUTTI_KERNELS_MATRICES_INL_H
#undef TUTTI_KERNELS_MATRICES_INL_H
#else
#define TUTTI_KERNELS_MATRICES_INL_H
#endif

#include <algorithm>
#include <cstdint>

#include "tutti/kernels/blocks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

// Rows of a matrix as the left operand. They are read in place if that is as fast as from a copy.
template <class T>
class LeftMatrix {
 public:
  explicit LeftMatrix(Matrix<const T> matrix)
      : matrix_(matrix), by_rows_(matrix.row != 1 || matrix.column == 1) {}

  void pack(int64_t p0, int64_t length, const Block<T>& block, T* buffer) {
    first_ = block.m0;
    data_ = matrix_.data + block.m0 * matrix_.row + p0 * matrix_.column;
    // Rows at such a distance would share lines of the cache.
    const bool apart = matrix_.column == 1 && matrix_.row * sizeof(T) % 4096 != 0;
    in_place_ = block.n1 - block.n0 <= 2 * kColumns<T> || length <= kFewRows || apart;
    if (in_place_) return;
    packed_ = buffer;
    height_ = block.height;
    const int64_t rows = block.m1 - block.m0;
    if (by_rows_) {
      for (int64_t m = 0; m < rows; ++m) {
        const T* const from = data_ + m * matrix_.row;
        T* const to = buffer + m / height_ * kLeftPanelSize<T> + m % height_ * kRowStride<T>;
        if (matrix_.column == 1)
          std::copy_n(from, length, to);
        else
          for (int64_t p = 0; p < length; ++p) to[p] = from[p * matrix_.column];
      }
      return;
    }
    for (int64_t p = 0; p < length; ++p) {
      const T* const from = data_ + p * matrix_.column;
      T* to = buffer + p * kRows;
      int64_t m = 0;
      if (height_ == kRows)
        for (; m + kRows <= rows; m += kRows, to += kLeftPanelSize<T>) std::copy_n(from + m, kRows, to);
      for (; m < rows; m += height_, to += kLeftPanelSize<T>)
        std::copy_n(from + m, std::min(height_, rows - m), to);
    }
  }

  LeftPanel<T> panel(int64_t m) const {
    if (in_place_) return {data_ + (m - first_) * matrix_.row, matrix_.row, matrix_.column};
    const T* const at = packed_ + (m - first_) / height_ * kLeftPanelSize<T>;
    return by_rows_ ? LeftPanel<T>{at, kRowStride<T>, 1} : LeftPanel<T>{at, 1, kRows};
  }

 private:
  const Matrix<const T> matrix_;
  const bool by_rows_;
  bool in_place_ = false;
  int64_t first_ = 0;
  int64_t height_ = kRows;
  const T* data_ = nullptr;
  const T* packed_ = nullptr;
};

// Columns of a matrix as the right operand. They are read in place if few rows use them, unless kPacks is
// true.
template <class T, bool kPacks = false>
class RightMatrix {
 public:
  explicit RightMatrix(Matrix<const T> matrix) : matrix_(matrix) {}

  // Packs all panels at once: rows of a matrix are read faster from memory if long parts are read.
  void pack(int64_t p0, int64_t length, const Block<T>& block, T* buffer) {
    first_ = block.n0;
    last_ = block.n1;
    data_ = matrix_.data + p0 * matrix_.row + block.n0 * matrix_.column;
    packed_ = buffer;
    width_ = block.width;
    in_place_ = !kPacks && matrix_.column == 1 && (block.m1 - block.m0 <= kFewRows || length <= kFewRows);
    const int64_t end = block.n1 - block.n0;
    // Only a narrower panel at the end is packed if the others are read in place.
    const int64_t begin = in_place_ ? end / width_ * width_ : 0;
    buffer += begin / width_ * kRightPanelSize<T>;
    if (matrix_.column == 1) {
      for (int64_t p = 0; p < length; ++p) {
        const T* const from = data_ + p * matrix_.row;
        T* to = buffer + p * kColumns<T>;
        for (int64_t n = begin; n < end; n += width_, to += kRightPanelSize<T>)
          copy_row(from + n, std::min(width_, end - n), to);
      }
      return;
    }
    for (int64_t n = begin; n < end; n += width_, buffer += kRightPanelSize<T>) {
      const int64_t count = std::min(width_, end - n);
      const T* const from = data_ + n * matrix_.column;
      if (matrix_.row == 1) {
        transpose(from, matrix_.column, length, count, buffer, kColumns<T>);
      } else {
        for (int64_t p = 0; p < length; ++p)
          for (int64_t j = 0; j < count; ++j)
            buffer[p * kColumns<T> + j] = from[p * matrix_.row + j * matrix_.column];
      }
    }
  }

  auto panel(int64_t n) const {
    const T* const at = packed_ + (n - first_) / width_ * kRightPanelSize<T>;
    if constexpr (kPacks)
      return RightPacked<T>{at};
    else if (in_place_ && n + width_ <= last_)
      return RightPanel<T>{data_ + (n - first_), matrix_.row};
    else
      return RightPanel<T>{at, kColumns<T>};
  }

 private:
  const Matrix<const T> matrix_;
  bool in_place_ = false;
  int64_t first_ = 0;
  int64_t last_ = 0;
  int64_t width_ = kColumns<T>;
  const T* data_ = nullptr;
  const T* packed_ = nullptr;
};

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

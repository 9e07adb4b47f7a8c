#include "tutti/kernels/products.h"

#include <algorithm>
#include <cstddef>

#include <hwy/aligned_allocator.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tutti/kernels/products.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "tutti/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

// The block of `out` that is held in registers: kRows rows of two vectors.
#if HWY_TARGET <= HWY_AVX3
constexpr int64_t kRows = 12;  // 24 of 32 registers
#else
constexpr int64_t kRows = 6;  // 12 of 16 registers
#endif
constexpr int64_t kVectors = 2;
// The parts of the operands that stay in the caches of a core.
constexpr int64_t kRowsAtOnce = 12 * kRows;
constexpr int64_t kColumnsAtOnce = 4096;

template <class T>
using Tag = hn::CappedTag<T, 64 / sizeof(T)>;

// The operands of one block: element (r, p) of the left one, vector v of row p of the right one.
template <class T>
struct Operands {
  const T* a;
  int64_t a_row;
  int64_t a_step;
  const T* b;
  int64_t b_step;
};

// Makes one chain for each element of a block of kCount rows, and adds it to the block, or begins the block.
template <int64_t kCount, class T>
HWY_INLINE void add_chains(int64_t length, const Operands<T>& of, T* HWY_RESTRICT block, int64_t stride,
                           bool first) {
  const Tag<T> d;
  const auto width = static_cast<int64_t>(hn::Lanes(d));
  hn::Vec<Tag<T>> chains[kCount][kVectors];
  for (int64_t r = 0; r < kCount; ++r)
    for (int64_t v = 0; v < kVectors; ++v) chains[r][v] = hn::Zero(d);
  const T* HWY_RESTRICT a = of.a;
  const T* HWY_RESTRICT b = of.b;
  for (int64_t p = 0; p < length; ++p, a += of.a_step, b += of.b_step) {
    hn::Vec<Tag<T>> right[kVectors];
    for (int64_t v = 0; v < kVectors; ++v) right[v] = hn::LoadU(d, b + v * width);
    for (int64_t r = 0; r < kCount; ++r) {
      const auto left = hn::Set(d, a[r * of.a_row]);
      for (int64_t v = 0; v < kVectors; ++v) chains[r][v] = fused(d, left, right[v], chains[r][v]);
    }
  }
  for (int64_t r = 0; r < kCount; ++r) {
    for (int64_t v = 0; v < kVectors; ++v) {
      T* const at = block + r * stride + v * width;
      hn::StoreU(first ? chains[r][v] : hn::Add(hn::LoadU(d, at), chains[r][v]), d, at);
    }
  }
}

template <class T>
HWY_INLINE void add_chains(int64_t rows, int64_t length, const Operands<T>& of, T* block, int64_t stride,
                           bool first) {
  switch (rows) {
    case 1: return add_chains<1>(length, of, block, stride, first);
    case 2: return add_chains<2>(length, of, block, stride, first);
    case 3: return add_chains<3>(length, of, block, stride, first);
    case 4: return add_chains<4>(length, of, block, stride, first);
    case 5: return add_chains<5>(length, of, block, stride, first);
#if HWY_TARGET <= HWY_AVX3
    case 6: return add_chains<6>(length, of, block, stride, first);
    case 7: return add_chains<7>(length, of, block, stride, first);
    case 8: return add_chains<8>(length, of, block, stride, first);
    case 9: return add_chains<9>(length, of, block, stride, first);
    case 10: return add_chains<10>(length, of, block, stride, first);
    case 11: return add_chains<11>(length, of, block, stride, first);
#endif
    default: return add_chains<kRows>(length, of, block, stride, first);
  }
}

// Computes the sums of a product, without alpha and the addend.
template <class T>
void sum(const Product<T>& of) {
  const Tag<T> d;
  const int64_t columns = kVectors * static_cast<int64_t>(hn::Lanes(d));
  if (of.k == 0) {
    for (int64_t i = 0; i < of.m; ++i) std::fill_n(of.out.data + i * of.out.row, of.n, T(0));
    return;
  }
  // An operand is copied together if the copy is read several times, or if its elements lie apart.
  const bool packs_b = of.b.column != 1 || of.m > 3 * kRows;
  const bool packs_a = of.n > 3 * columns;
  const int64_t width = std::min(kColumnsAtOnce, (of.n + columns - 1) / columns * columns);
  const auto right = hwy::AllocateAligned<T>(static_cast<size_t>(packs_b ? kChain * width : 1));
  const auto left = hwy::AllocateAligned<T>(static_cast<size_t>(packs_a ? kChain * kRowsAtOnce : 1));
  HWY_ALIGN T edge[kRows * kVectors * hn::MaxLanes(Tag<T>())];
  HWY_ALIGN T last[kChain * kVectors * hn::MaxLanes(Tag<T>())];  // the last columns of `b`, with zeros behind

  for (int64_t n0 = 0; n0 < of.n; n0 += width) {
    const int64_t n1 = std::min(of.n, n0 + width);
    for (int64_t p0 = 0; p0 < of.k; p0 += kChain) {
      const int64_t length = std::min(kChain, of.k - p0);
      const bool first = p0 == 0;
      const auto pack_columns = [&](int64_t from, T* to) {
        const int64_t count = std::min(columns, n1 - from);
        for (int64_t p = 0; p < length; ++p, to += columns) {
          const T* at = of.b.data + (p0 + p) * of.b.row + from * of.b.column;
          if (of.b.column == 1)
            std::copy_n(at, count, to);
          else
            for (int64_t j = 0; j < count; ++j) to[j] = at[j * of.b.column];
          std::fill(to + count, to + columns, T(0));
        }
      };
      if (packs_b) {
        for (int64_t n = n0; n < n1; n += columns) pack_columns(n, right.get() + (n - n0) * length);
      } else if ((n1 - n0) % columns != 0) {
        pack_columns(n0 + (n1 - n0) / columns * columns, last);
      }
      for (int64_t m0 = 0; m0 < of.m; m0 += kRowsAtOnce) {
        const int64_t m1 = std::min(of.m, m0 + kRowsAtOnce);
        if (packs_a) {
          T* to = left.get();
          for (int64_t m = m0; m < m1; m += kRows) {
            const int64_t count = std::min(kRows, m1 - m);
            const T* const from = of.a.data + m * of.a.row + p0 * of.a.column;
            for (int64_t p = 0; p < length; ++p, to += count)
              for (int64_t r = 0; r < count; ++r) to[r] = from[r * of.a.row + p * of.a.column];
          }
        }
        for (int64_t n = n0; n < n1; n += columns) {
          const bool whole = n + columns <= n1;
          for (int64_t m = m0; m < m1; m += kRows) {
            const int64_t rows = std::min(kRows, m1 - m);
            Operands<T> block{};
            if (packs_a) {
              block.a = left.get() + (m - m0) * length;
              block.a_row = 1;
              block.a_step = rows;
            } else {
              block.a = of.a.data + m * of.a.row + p0 * of.a.column;
              block.a_row = of.a.row;
              block.a_step = of.a.column;
            }
            block.b_step = columns;
            if (packs_b) {
              block.b = right.get() + (n - n0) * length;
            } else if (whole) {
              block.b = of.b.data + p0 * of.b.row + n;
              block.b_step = of.b.row;
            } else {
              block.b = last;
            }
            T* const out = of.out.data + m * of.out.row + n;
            if (whole) {
              add_chains(rows, length, block, out, of.out.row, first);
              continue;
            }
            add_chains(rows, length, block, edge, columns, true);
            for (int64_t r = 0; r < rows; ++r) {
              for (int64_t j = 0; j < n1 - n; ++j)
                out[r * of.out.row + j] = first ? edge[r * columns + j] : out[r * of.out.row + j] + edge[r * columns + j];
            }
          }
        }
      }
    }
  }
}

template <class T>
HWY_INLINE void finish(const Product<T>& of) {
  if (of.alpha == T(1) && of.beta == T(0)) return;
  for (int64_t i = 0; i < of.m; ++i) {
    T* const out = of.out.data + i * of.out.row;
    for (int64_t j = 0; j < of.n; ++j) {
      const T scaled = of.alpha == T(1) ? out[j] : of.alpha * out[j];
      out[j] = of.beta == T(0) ? scaled
                               : std::fma(of.beta, of.addend.data[i * of.addend.row + j * of.addend.column], scaled);
    }
  }
}

void MultiplyFloat(const Product<float>& product) {
  sum(product);
  finish(product);
}

void MultiplyDouble(const Product<double>& product) {
  sum(product);
  finish(product);
}

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tutti::kernels {

HWY_EXPORT(MultiplyFloat);
HWY_EXPORT(MultiplyDouble);

void multiply(const Product<float>& product) { HWY_DYNAMIC_DISPATCH(MultiplyFloat)(product); }
void multiply(const Product<double>& product) { HWY_DYNAMIC_DISPATCH(MultiplyDouble)(product); }

}  // namespace tutti::kernels
#endif

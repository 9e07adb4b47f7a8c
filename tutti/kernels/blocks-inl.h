// Computes blocks of products for each of Highway's targets, in the order of operations that products.h
// defines. The operands are given as classes that copy parts of themselves into panels: matrices in
// products.cc, images in convolutions.cc. Included once per target, after hwy/foreach_target.h.
#if defined(TUTTI_KERNELS_BLOCKS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TUTTI_KERNELS_BLOCKS_INL_H
#undef TUTTI_KERNELS_BLOCKS_INL_H
#else
#define TUTTI_KERNELS_BLOCKS_INL_H
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <hwy/cache_control.h>

#include "tutti/kernels/products.h"
#include "tutti/kernels/scratch.h"
#include "tutti/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

// A tile of the result, kRows rows of kVectors vectors, is held in registers. With more vectors, a panel of
// the right operand (32 KiB with AVX-512) would not stay in the first-level cache. With more rows, the
// pointers to rows of the left operand would not fit into registers.
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64
inline constexpr int64_t kRows = 8;  // 16 of 32 registers
#else
inline constexpr int64_t kRows = 6;  // 12 of 16 registers
#endif
inline constexpr int64_t kVectors = 2;
template <class T>
inline constexpr int64_t kColumns = kVectors* kLanes<T>;

// A panel of the left operand: element (r, p) is data[r * row + p * step], with r < kRows. A cursor reads the
// elements of one term after the other.
template <class T>
struct LeftPanel {
  template <int64_t kCount>
  class Cursor {
   public:
    HWY_INLINE explicit Cursor(const LeftPanel& panel) : row_(panel.row), step_(panel.step) {
      TUTTI_UNROLL for (int64_t i = 0; i < kPointers; ++i) at_[i] = panel.data + 3 * i * row_;
    }
    HWY_INLINE T element(int64_t r) const { return at_[r / 3][r % 3 * row_]; }
    HWY_INLINE void next() { TUTTI_UNROLL for (int64_t i = 0; i < kPointers; ++i) at_[i] += step_; }

   private:
    // One pointer for three rows: one for each row would need more registers than there are.
    static constexpr int64_t kPointers = (kCount + 2) / 3;
    const T* at_[kPointers];
    int64_t row_;
    int64_t step_;
  };

  const T* data;
  int64_t row;
  int64_t step;
};

// A panel of the left operand: element (r, p) is rows[r][offsets[p]].
template <class T>
struct LeftRows {
  template <int64_t kCount>
  class Cursor {
   public:
    HWY_INLINE explicit Cursor(const LeftRows& panel) : next_(panel.offsets) {
      TUTTI_UNROLL for (int64_t r = 0; r < kCount; ++r) rows_[r] = panel.rows[r];
      next();
    }
    HWY_INLINE T element(int64_t r) const { return rows_[r][offset_]; }
    HWY_INLINE void next() { offset_ = *next_++; }  // reads one offset more than there are terms

   private:
    const T* rows_[kCount];
    const int64_t* next_;
    int64_t offset_;
  };

  const T* rows[kRows];
  const int64_t* offsets;
};

// A panel of the right operand: element (p, j) is data[p * step + j], with j < kColumns. Columns behind the
// last one may have any value.
template <class T>
struct RightPanel {
  template <int64_t kWide>
  class Cursor {
   public:
    HWY_INLINE explicit Cursor(const RightPanel& panel) : at_(panel.data), step_(panel.step) {}
    HWY_INLINE Vector<T> vector(int64_t v) const { return hn::LoadU(Tag<T>(), at_ + v * kLanes<T>); }
    HWY_INLINE void next() {
      constexpr int64_t kAhead = 8;  // terms that are fetched before they are needed
      at_ += step_;
      TUTTI_UNROLL for (int64_t v = 0; v < kWide; ++v) hwy::Prefetch(at_ + kAhead * step_ + v * kLanes<T>);
    }

   private:
    const T* HWY_RESTRICT at_;
    int64_t step_;
  };

  const T* data;
  int64_t step;
};

// A panel of the right operand that was packed: element (p, j) is data[p * kColumns + j]. The constant
// distance leaves registers to a left operand that needs many.
template <class T>
struct RightPacked {
  template <int64_t kWide>
  class Cursor {
   public:
    HWY_INLINE explicit Cursor(const RightPacked& panel) : at_(panel.data) {}
    HWY_INLINE Vector<T> vector(int64_t v) const { return hn::Load(Tag<T>(), at_ + v * kLanes<T>); }
    HWY_INLINE void next() { at_ += kColumns<T>; }

   private:
    const T* HWY_RESTRICT at_;
  };

  const T* data;
};

// A panel of the right operand: vector v of term p begins at vectors[v][offsets[p]].
template <class T>
struct RightVectors {
  template <int64_t kWide>
  class Cursor {
   public:
    HWY_INLINE explicit Cursor(const RightVectors& panel) : next_(panel.offsets) {
      TUTTI_UNROLL for (int64_t v = 0; v < kWide; ++v) vectors_[v] = panel.vectors[v];
      next();
    }
    HWY_INLINE Vector<T> vector(int64_t v) const { return hn::LoadU(Tag<T>(), vectors_[v] + offset_); }
    HWY_INLINE void next() { offset_ = *next_++; }  // reads one offset more than there are terms

   private:
    const T* vectors_[kWide];
    const int64_t* next_;
    int64_t offset_;
  };

  const T* vectors[kVectors];
  const int64_t* offsets;
};

// A panel of the right operand that was packed: term p of the product is row rows[p] of the panel.
template <class T>
struct RightListed {
  template <int64_t kWide>
  class Cursor {
   public:
    HWY_INLINE explicit Cursor(const RightListed& panel) : data_(panel.data), next_(panel.rows) { next(); }
    HWY_INLINE Vector<T> vector(int64_t v) const { return hn::Load(Tag<T>(), at_ + v * kLanes<T>); }
    HWY_INLINE void next() {
      at_ = data_ + *next_++ * kColumns<T>;
    }  // reads one row more than there are terms

   private:
    const T* HWY_RESTRICT at_;
    const T* data_;
    const int64_t* next_;
  };

  const T* data;
  const int64_t* rows;
};

// A tile of the result in memory: where each of its rows begins.
template <class T>
struct Tile {
  T* rows[kRows];
};

// The distance of rows in a packed panel of the left operand whose rows lie together. It is no power of two,
// so that the rows do not compete for the same lines of the cache.
template <class T>
inline constexpr int64_t kRowStride = kChain + 64 / static_cast<int64_t>(sizeof(T));
template <class T>
inline constexpr int64_t kLeftPanelSize = kRows* kRowStride<T>;
template <class T>
inline constexpr int64_t kRightPanelSize = kChain* kColumns<T>;

// Computes one chain for each element of a tile, and adds it to the tile, or stores it if it is the first
// one.
template <int64_t kCount, int64_t kWide, class T, class Left, class Right>
HWY_NOINLINE void add_chains(int64_t length, const Left& left, const Right& right, const Tile<T>& tile,
                             bool first) {
  const Tag<T> d;
  Vector<T> chains[kCount][kWide];
  TUTTI_UNROLL for (int64_t r = 0; r < kCount; ++r) TUTTI_UNROLL for (int64_t v = 0; v < kWide; ++v)
      chains[r][v] = hn::Zero(d);
  TUTTI_UNROLL for (int64_t r = 0; r < kCount; ++r) TUTTI_UNROLL for (int64_t v = 0; v < kWide; ++v)
      hwy::Prefetch(tile.rows[r] + v * kLanes<T>);
  typename Left::template Cursor<kCount> a(left);
  typename Right::template Cursor<kWide> b(right);
  for (int64_t p = 0; p < length; ++p) {
    Vector<T> of_right[kWide];
    TUTTI_UNROLL for (int64_t v = 0; v < kWide; ++v) of_right[v] = b.vector(v);
    b.next();
    TUTTI_UNROLL for (int64_t r = 0; r < kCount; ++r) {
      const auto of_left = hn::Set(d, a.element(r));
      TUTTI_UNROLL for (int64_t v = 0; v < kWide; ++v) chains[r][v] =
          fused(d, of_left, of_right[v], chains[r][v]);
    }
    a.next();
  }
  TUTTI_UNROLL for (int64_t r = 0; r < kCount; ++r) {
    TUTTI_UNROLL for (int64_t v = 0; v < kWide; ++v) {
      T* const at = tile.rows[r] + v * kLanes<T>;
      hn::StoreU(first ? chains[r][v] : hn::Add(hn::LoadU(d, at), chains[r][v]), d, at);
    }
  }
}

template <int64_t kWide, class T, class Left, class Right>
HWY_INLINE void add_chains(int64_t rows, int64_t length, const Left& left, const Right& right,
                           const Tile<T>& tile, bool first) {
  switch (rows) {
    case 1:
      return add_chains<1, kWide>(length, left, right, tile, first);
    case 2:
      return add_chains<2, kWide>(length, left, right, tile, first);
    case 3:
      return add_chains<3, kWide>(length, left, right, tile, first);
    case 4:
      return add_chains<4, kWide>(length, left, right, tile, first);
    case 5:
      return add_chains<5, kWide>(length, left, right, tile, first);
    case 6:
      return add_chains<6, kWide>(length, left, right, tile, first);
    case 7:
      return add_chains<std::min<int64_t>(7, kRows), kWide>(length, left, right, tile, first);
    default:
      return add_chains<kRows, kWide>(length, left, right, tile, first);
  }
}

template <class T, class Left, class Right>
HWY_INLINE void add_chains(int64_t rows, int64_t vectors, int64_t length, const Left& left,
                           const Right& right, const Tile<T>& tile, bool first) {
  return vectors == 1 ? add_chains<1>(rows, length, left, right, tile, first)
                      : add_chains<kVectors>(rows, length, left, right, tile, first);
}

// A part of the result: rows m0 to m1, columns n0 to n1. They are divided evenly into panels, of which the
// last one may have less.
template <class T>
struct Block {
  Block(int64_t begin_m, int64_t end_m, int64_t begin_n, int64_t end_n)
      : m0(begin_m),
        m1(end_m),
        n0(begin_n),
        n1(end_n),
        height(even_part(end_m - begin_m, kRows)),
        width(even_part((end_n - begin_n + kLanes<T> - 1) / kLanes<T>, kVectors) * kLanes<T>) {}

  int64_t m0;
  int64_t m1;
  int64_t n0;
  int64_t n1;
  int64_t height;  // the rows of a panel
  int64_t width;   // the columns of a panel, in whole vectors

 private:
  static int64_t even_part(int64_t whole, int64_t most) {
    const int64_t parts = std::max<int64_t>(1, (whole + most - 1) / most);
    return std::max<int64_t>(1, (whole + parts - 1) / parts);
  }
};

// Adds a part of a row of a tile to the result, or stores it if it is the first one.
template <class T>
HWY_INLINE void add_row(const T* from, int64_t count, bool first, T* to) {
  const Tag<T> d;
  int64_t i = 0;
  for (; i + kLanes<T> <= count; i += kLanes<T>) {
    const auto chains = hn::LoadU(d, from + i);
    hn::StoreU(first ? chains : hn::Add(hn::LoadU(d, to + i), chains), d, to + i);
  }
  for (; i < count; ++i) to[i] = first ? from[i] : to[i] + from[i];
}

// Adds one chain to each element of so many rows and columns, or stores it if it is the first one.
template <class T, class Left, class Right>
HWY_INLINE void add_chains_to_rows(int64_t rows, int64_t columns, int64_t length, const Left& left,
                                   const Right& right, const Tile<T>& tile, bool first) {
  const int64_t vectors = (columns + kLanes<T> - 1) / kLanes<T>;
  if (vectors * kLanes<T> == columns) return add_chains(rows, vectors, length, left, right, tile, first);
  HWY_ALIGN T edge[kRows * kColumns<T>];
  Tile<T> edge_tile{};
  for (int64_t r = 0; r < kRows; ++r) edge_tile.rows[r] = edge + r * kColumns<T>;
  add_chains(rows, vectors, length, left, right, edge_tile, true);
  for (int64_t r = 0; r < rows; ++r) add_row(edge_tile.rows[r], columns, first, tile.rows[r]);
}

// The block of a result of which element (m0, n0) is at `data`.
template <class T>
struct OutMatrix {
  T* at(int64_t m, int64_t n) const { return data + (m - m0) * row + (n - n0); }

  T* data;
  int64_t row;
  int64_t m0 = 0;
  int64_t n0 = 0;
};

// Returns memory for the packed panels of the columns of a block.
template <class T>
T* right_panels(const Block<T>& block) {
  const int64_t panels = (block.n1 - block.n0 + block.width - 1) / block.width;
  // The last store into a panel may go beyond it by less than a vector.
  return scratch<T>(Buffer::Right, panels * kRightPanelSize<T> + kLanes<T>);
}

// Computes a block of a product with k terms. Needs of the operands:
//   left.pack(p0, length, block, buffer)   prepares terms p0 to p0 + length of the rows of the block
//   left.panel(m)                          the panel of rows m to m + block.height
//   right.pack(p0, length, block, buffer)  prepares the same terms of the columns of the block
//   right.panel(n)                         the panel of columns n to n + block.width, until the next call
// The panel of the right operand stays in the first-level cache, and the panels of the left operand are read
// in their order.
template <class T, class Left, class Right>
void sum_block(const Block<T>& block, int64_t k, Left& left, Right& right, const OutMatrix<T>& out) {
  const int64_t rows = block.m1 - block.m0;
  T* const left_buffer = scratch<T>(Buffer::Left, (rows + kRows - 1) / kRows * kLeftPanelSize<T>);
  T* const right_buffer = right_panels(block);
  for (int64_t p0 = 0; p0 == 0 || p0 < k; p0 += kChain) {
    const int64_t length = std::min(kChain, k - p0);
    left.pack(p0, length, block, left_buffer);
    right.pack(p0, length, block, right_buffer);
    for (int64_t n = block.n0; n < block.n1; n += block.width) {
      const auto panel = right.panel(n);
      const int64_t wide = std::min(block.width, block.n1 - n);
      for (int64_t m = block.m0; m < block.m1; m += block.height) {
        const int64_t high = std::min(block.height, block.m1 - m);
        Tile<T> tile{};
        for (int64_t r = 0; r < high; ++r) tile.rows[r] = out.at(m + r, n);
        add_chains_to_rows(high, wide, length, left.panel(m), panel, tile, p0 == 0);
      }
    }
  }
}

// Copies `count` columns of `length` elements, element (p, j) at from[p + j * column], to to[p * row + j].
template <class T>
HWY_INLINE void transpose(const T* from, int64_t column, int64_t length, int64_t count, T* to, int64_t row) {
  const hn::CappedTag<T, 16 / sizeof(T)> d;  // squares of 4 x 4 floats, 2 x 2 doubles
  constexpr auto kSide = static_cast<int64_t>(hn::MaxLanes(decltype(d)()));
  for (int64_t j = 0; j < count; j += kSide) {
    int64_t p = 0;
#if HWY_TARGET != HWY_SCALAR
    if (j + kSide <= count) {
      const T* const at = from + j * column;
      for (; p + kSide <= length; p += kSide) {
        T* const out = to + p * row + j;
        if constexpr (kSide == 4) {
          const auto r0 = hn::LoadU(d, at + p);
          const auto r1 = hn::LoadU(d, at + p + column);
          const auto r2 = hn::LoadU(d, at + p + 2 * column);
          const auto r3 = hn::LoadU(d, at + p + 3 * column);
          const auto low0 = hn::InterleaveLower(d, r0, r2);
          const auto low1 = hn::InterleaveLower(d, r1, r3);
          const auto high0 = hn::InterleaveUpper(d, r0, r2);
          const auto high1 = hn::InterleaveUpper(d, r1, r3);
          hn::StoreU(hn::InterleaveLower(d, low0, low1), d, out);
          hn::StoreU(hn::InterleaveUpper(d, low0, low1), d, out + row);
          hn::StoreU(hn::InterleaveLower(d, high0, high1), d, out + 2 * row);
          hn::StoreU(hn::InterleaveUpper(d, high0, high1), d, out + 3 * row);
        } else {
          const auto r0 = hn::LoadU(d, at + p);
          const auto r1 = hn::LoadU(d, at + p + column);
          hn::StoreU(hn::InterleaveLower(d, r0, r1), d, out);
          hn::StoreU(hn::InterleaveUpper(d, r0, r1), d, out + row);
        }
      }
    }
#endif
    for (; p < length; ++p)
      for (int64_t i = j; i < std::min(count, j + kSide); ++i) to[p * row + i] = from[p + i * column];
  }
}

// Copies `count` elements.
template <class T>
HWY_INLINE void copy_row(const T* from, int64_t count, T* to) {
  const Tag<T> d;
  int64_t i = 0;
  for (; i + kLanes<T> <= count; i += kLanes<T>) hn::StoreU(hn::LoadU(d, from + i), d, to + i);
  for (; i < count; ++i) to[i] = from[i];
}

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

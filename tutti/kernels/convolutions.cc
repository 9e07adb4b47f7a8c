#include "tutti/kernels/convolutions.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tutti/kernels/convolutions.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "tutti/kernels/gather-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

// Copies one channel of a piece to the result, and adds the bias.
template <class T>
HWY_INLINE void write_line(const T* from, int64_t count, const T* bias, T* to, int64_t step) {
  int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  if (kStoresParts && step == 1) {
    const Tag<T> d;
    for (; i < count; i += kLanes<T>) {
      auto sums = hn::LoadU(d, from + i);
      if (bias != nullptr) sums = hn::Add(sums, hn::Set(d, *bias));
      if (i + kLanes<T> <= count)
        hn::StoreU(sums, d, to + i);
      else
        hn::BlendedStore(sums, hn::FirstN(d, static_cast<size_t>(count - i)), d, to + i);
    }
  }
#endif
  for (; i < count; ++i) to[i * step] = bias != nullptr ? from[i] + *bias : from[i];
}

// Writes a block whose rows are channels.
template <class T>
void write_channels(const Correlation<T>& of, const Block<T>& block, const OutMatrix<T>& sums,
                    std::vector<Piece>& pieces) {
  pieces_of(of.from, *of.columns, block.n0, block.n1, pieces);
  for (int64_t c = block.m0; c < block.m1; ++c) {
    const T* const bias = of.bias != nullptr ? of.bias + c : nullptr;
    T* const channel = of.out + c * of.channel_step;
    for (const Piece& piece : pieces)
      write_line(sums.at(c, piece.column), piece.count, bias,
                 channel + piece.image * of.image_step + of.positions[static_cast<size_t>(piece.position)],
                 of.step);
  }
}

// Writes a block whose rows are positions, and whose channels lie together in the result.
template <class T>
void write_positions(const Correlation<T>& of, const Block<T>& block, const OutMatrix<T>& sums) {
  const Tag<T> d;
  const int64_t channels = block.n1 - block.n0;
  for (int64_t m = block.m0; m < block.m1; ++m) {
    const T* const from = sums.at(m, block.n0);
    T* const to = of.out + m / of.from.size() * of.image_step +
                  of.positions[static_cast<size_t>(m % of.from.size())] + block.n0;
    const T* const bias = of.bias != nullptr ? of.bias + block.n0 : nullptr;
    int64_t c = 0;
    for (; c + kLanes<T> <= channels; c += kLanes<T>) {
      auto sum = hn::LoadU(d, from + c);
      if (bias != nullptr) sum = hn::Add(sum, hn::LoadU(d, bias + c));
      hn::StoreU(sum, d, to + c);
    }
    for (; c < channels; ++c) to[c] = bias != nullptr ? from[c] + bias[c] : from[c];
  }
}

template <class T, class Left, class Right>
void correlate_blocks(const Correlation<T>& of, const Cut& cut, int64_t first, int64_t last, Left& left,
                      Right& right) {
  const int64_t rows = of.channels_last ? of.from.images * of.from.size() : of.channels;
  const int64_t columns = of.channels_last ? of.channels : of.from.images * of.columns->count;
  std::vector<Piece> pieces;
  for (int64_t i = first; i < last; ++i) {
    const int64_t m = i % cut.down * cut.rows;
    const int64_t n = i / cut.down * cut.columns;
    const Block<T> block(m, std::min(rows, m + cut.rows), n, std::min(columns, n + cut.columns));
    const int64_t row = block.n1 - block.n0;
    // The last vector of the last row may be read beyond its end.
    T* const buffer = scratch<T>(Buffer::Result, (block.m1 - block.m0) * row + kLanes<T>);
    const OutMatrix<T> sums{buffer, row, block.m0, block.n0};
    sum_block<T>(block, of.from.terms_count(), left, right, sums);
    if (of.channels_last)
      write_positions(of, block, sums);
    else
      write_channels(of, block, sums, pieces);
  }
}

template <class T>
HWY_INLINE void correlate(const Correlation<T>& of, const Cut& cut, int64_t first, int64_t last) {
  if (of.channels_last) {
    LeftPositions<T> left(of.from);
    RightMatrix<T, true> right({of.weights.data, of.weights.column, of.weights.row});
    correlate_blocks(of, cut, first, last, left, right);
  } else if (of.columns->spread()) {
    LeftMatrix<T> left(of.weights);
    RightSpread<T> right(of.from, *of.columns);
    correlate_blocks(of, cut, first, last, left, right);
  } else {
    LeftMatrix<T> left(of.weights);
    RightDense<T> right(of.from, *of.columns);
    correlate_blocks(of, cut, first, last, left, right);
  }
}

template <class T, class Right>
void sum_positions(const WeightGradient<T>& of, const Cut& cut, int64_t first, int64_t last, Right& right) {
  const int64_t terms = of.from.images * of.from.size();
  LeftTerms<T> left(of.from, of.channels_last);
  const OutMatrix<T> out{of.out, of.channels, 0, 0};
  for (int64_t i = first; i < last; ++i) {
    const int64_t m = i % cut.down * cut.rows;
    const int64_t n = i / cut.down * cut.columns;
    const int64_t end = std::min(of.channels, n + cut.columns);
    if (of.out != nullptr) {
      const Block<T> block(m, std::min(of.from.terms_count(), m + cut.rows), n, end);
      sum_block<T>(block, terms, left, right, out);
    }
    if (of.bias_out != nullptr && m == 0) {
      LeftOnes<T> ones;
      const Block<T> block(0, 1, n, end);
      sum_block<T>(block, terms, ones, right, OutMatrix<T>{of.bias_out, of.channels, 0, 0});
    }
  }
}

template <class T>
HWY_INLINE void sum_positions(const WeightGradient<T>& of, const Cut& cut, int64_t first, int64_t last) {
  if (of.channels_last) {
    RightMatrix<T, true> right({of.gradient, of.image_step / of.from.size(), 1});
    sum_positions(of, cut, first, last, right);
  } else {
    RightPlanes<T> right(of);
    sum_positions(of, cut, first, last, right);
  }
}

void correlate_floats(const Correlation<float>& of, const Cut& cut, int64_t first, int64_t last) {
  correlate(of, cut, first, last);
}

void correlate_doubles(const Correlation<double>& of, const Cut& cut, int64_t first, int64_t last) {
  correlate(of, cut, first, last);
}

void sum_positions_of_floats(const WeightGradient<float>& of, const Cut& cut, int64_t first, int64_t last) {
  sum_positions(of, cut, first, last);
}

void sum_positions_of_doubles(const WeightGradient<double>& of, const Cut& cut, int64_t first, int64_t last) {
  sum_positions(of, cut, first, last);
}

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tutti::kernels {

HWY_EXPORT(correlate_floats);
HWY_EXPORT(correlate_doubles);
HWY_EXPORT(sum_positions_of_floats);
HWY_EXPORT(sum_positions_of_doubles);

void compute(const Correlation<float>& correlation, const Cut& cut, int64_t first, int64_t last) {
  HWY_DYNAMIC_DISPATCH(correlate_floats)(correlation, cut, first, last);
}

void compute(const Correlation<double>& correlation, const Cut& cut, int64_t first, int64_t last) {
  HWY_DYNAMIC_DISPATCH(correlate_doubles)(correlation, cut, first, last);
}

void compute(const WeightGradient<float>& gradient, const Cut& cut, int64_t first, int64_t last) {
  HWY_DYNAMIC_DISPATCH(sum_positions_of_floats)(gradient, cut, first, last);
}

void compute(const WeightGradient<double>& gradient, const Cut& cut, int64_t first, int64_t last) {
  HWY_DYNAMIC_DISPATCH(sum_positions_of_doubles)(gradient, cut, first, last);
}

}  // namespace tutti::kernels
#endif

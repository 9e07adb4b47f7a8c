#include "tutti/kernels/convolutions.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tutti/kernels/convolutions.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "tutti/kernels/gather-inl.h"
#include "tutti/kernels/listed-inl.h"

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

// Adds the bias of each channel to a block whose rows are positions.
template <class T>
void add_bias(const T* bias, const Block<T>& block, const OutMatrix<T>& sums) {
  const Tag<T> d;
  const int64_t channels = block.n1 - block.n0;
  for (int64_t m = block.m0; m < block.m1; ++m) {
    T* const row = sums.at(m, block.n0);
    int64_t c = 0;
    for (; c + kLanes<T> <= channels; c += kLanes<T>)
      hn::StoreU(hn::Add(hn::LoadU(d, row + c), hn::LoadU(d, bias + c)), d, row + c);
    for (; c < channels; ++c) row[c] += bias[c];
  }
}

// Transposes rows of channels. Channels are often so far from each other that their lines of the cache
// compete, so that few of them are written at a time.
template <class T>
void transpose_into_lines(const T* from, int64_t row, int64_t channels, int64_t count, T* to,
                          int64_t channel_step) {
  constexpr int64_t kChannels = 16 / sizeof(T);
  constexpr int64_t kPositions = 64;
  for (int64_t p = 0; p < count; p += kPositions)
    for (int64_t c = 0; c < channels; c += kChannels)
      transpose(from + p * row + c, row, std::min(kChannels, channels - c), std::min(kPositions, count - p),
                to + c * channel_step + p, channel_step);
}

// Writes a block whose rows are positions, as many of each image as lie in it.
template <class T>
void write_positions(const Correlation<T>& of, const Block<T>& block, const OutMatrix<T>& sums) {
  const int64_t size = of.from.size();
  const int64_t channels = block.n1 - block.n0;
  for (int64_t m = block.m0; m < block.m1;) {
    const int64_t first = m % size;
    const int64_t count = std::min(block.m1 - m, size - first);
    const T* const from = sums.at(m, block.n0);
    T* const to = of.out + m / size * of.image_step + block.n0 * of.channel_step;
    const int64_t* const places = of.positions.data() + first;
    if (of.channel_step == 1) {
      for (int64_t p = 0; p < count; ++p) copy_row(from + p * sums.row, channels, to + places[p]);
    } else if (places[count - 1] - places[0] == count - 1) {
      transpose_into_lines(from, sums.row, channels, count, to + places[0], of.channel_step);
    } else {
      for (int64_t c = 0; c < channels; ++c)
        for (int64_t p = 0; p < count; ++p) to[c * of.channel_step + places[p]] = from[p * sums.row + c];
    }
    m += count;
  }
}

// Computes blocks whose rows are positions.
template <class T>
void correlate_positions(const Correlation<T>& of, const Cut& cut, int64_t first, int64_t last) {
  LeftPositions<T> left(of);
  RightMatrix<T, true> right({of.weights.data, of.weights.column, of.weights.row});
  for (int64_t i = first; i < last; ++i) {
    const int64_t m = i % cut.down * cut.rows;
    const int64_t n = i / cut.down * cut.columns;
    const Block<T> block(m, std::min(of.from.images * of.from.size(), m + cut.rows), n,
                         std::min(of.channels, n + cut.columns));
    const int64_t row = block.n1 - block.n0;
    const OutMatrix<T> sums{scratch<T>(Buffer::Result, (block.m1 - block.m0) * row), row, block.m0, block.n0};
    sum_listed<T>(block, of.from.terms_count(), left, right, sums);
    if (of.bias != nullptr) add_bias(of.bias + block.n0, block, sums);
    write_positions(of, block, sums);
  }
}

// Computes blocks whose rows are channels.
template <class T, class Right>
void correlate_channels(const Correlation<T>& of, const Cut& cut, int64_t first, int64_t last, Right right) {
  LeftMatrix<T> left(of.weights);
  std::vector<Piece> pieces;
  for (int64_t i = first; i < last; ++i) {
    const int64_t m = i % cut.down * cut.rows;
    const int64_t n = i / cut.down * cut.columns;
    const Block<T> block(m, std::min(of.channels, m + cut.rows), n,
                         std::min(of.from.images * of.columns->count, n + cut.columns));
    const int64_t row = block.n1 - block.n0;
    // The last vector of the last row may be read beyond its end.
    T* const buffer = scratch<T>(Buffer::Result, (block.m1 - block.m0) * row + kLanes<T>);
    const OutMatrix<T> sums{buffer, row, block.m0, block.n0};
    sum_block<T>(block, of.from.terms_count(), left, right, sums);
    write_channels(of, block, sums, pieces);
  }
}

template <class T>
HWY_INLINE void correlate(const Correlation<T>& of, const Cut& cut, int64_t first, int64_t last) {
  if (of.columns == nullptr)
    correlate_positions(of, cut, first, last);
  else if (of.columns->spread())
    correlate_channels(of, cut, first, last, RightSpread<T>(of.from, *of.columns));
  else
    correlate_channels(of, cut, first, last, RightDense<T>(of.from, *of.columns));
}

template <class T, class Right>
void sum_positions(const WeightGradient<T>& of, const Cut& cut, int64_t first, int64_t last, Right& right) {
  const int64_t terms = of.from.images * of.from.size();
  LeftTerms<T> left(of);
  const OutMatrix<T> out{of.out, of.channels, 0, 0};
  for (int64_t i = first; i < last; ++i) {
    const int64_t m = i % cut.down * cut.rows;
    const int64_t n = i / cut.down * cut.columns;
    const int64_t end = std::min(of.channels, n + cut.columns);
    if (of.out != nullptr) {
      const Block<T> block(m, std::min(of.from.terms_count(), m + cut.rows), n, end);
      sum_listed<T>(block, terms, left, right, out);
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

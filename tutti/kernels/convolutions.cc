#include "tutti/kernels/convolutions.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tutti/kernels/convolutions.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "tutti/kernels/gather-inl.h"
#include "tutti/kernels/matrices-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

template <class T>
bool lies_together(const Correlation<T>& of) {
  const int64_t unit = of.channels_last ? of.channel_step == 1 ? of.steps[2] : 0 : 1;
  const Space& size = of.from.positions;
  const bool lines =
      of.steps[2] == unit && of.steps[1] == unit * size[2] && of.steps[0] == unit * size[1] * size[2];
  return lines && (!of.channels_last || of.image_step == of.steps[0] * size[0]);
}

// Adds the bias to a block that lies in `out`.
template <class T, class Out>
void add_bias(const Correlation<T>& of, const Block<T>& block, const Out& out) {
  if (of.bias == nullptr) return;
  const Tag<T> d;
  for (int64_t m = block.m0; m < block.m1; ++m) {
    for (int64_t n = block.n0, count = 0; n < block.n1; n += count) {
      count = std::min({block.n1 - n, out.together(n), kColumns<T>});
      T* const at = out.at(m, n);
      int64_t i = 0;
      for (; i + kLanes<T> <= count; i += kLanes<T>) {
        const auto bias = of.channels_last ? hn::LoadU(d, of.bias + n + i) : hn::Set(d, of.bias[m]);
        hn::StoreU(hn::Add(hn::LoadU(d, at + i), bias), d, at + i);
      }
      for (; i < count; ++i) at[i] += of.bias[of.channels_last ? n + i : m];
    }
  }
}

// Writes a block from `out` to the places of the result.
template <class T>
void scatter(const Correlation<T>& of, const Block<T>& block, const OutMatrix<T>& out) {
  std::vector<Line> lines;
  lines_of(of.from.positions, of.channels_last ? block.m0 : block.n0, of.channels_last ? block.m1 : block.n1,
           lines);
  const int64_t first = of.channels_last ? block.n0 : block.m0;
  const int64_t last = of.channels_last ? block.n1 : block.m1;
  int64_t done = 0;
  for (const Line& line : lines) {
    T* to = of.out + line.image * of.image_step;
    for (size_t d = 0; d < 3; ++d) to += line.position[d] * of.steps[d];
    if (of.channels_last) {
      for (int64_t i = 0; i < line.count; ++i)
        for (int64_t c = first; c < last; ++c)
          to[i * of.steps[2] + c * of.channel_step] = out.data[(done + i) * out.row + (c - first)];
    } else {
      for (int64_t c = first; c < last; ++c)
        for (int64_t i = 0; i < line.count; ++i)
          to[i * of.steps[2] + c * of.channel_step] = out.data[(c - first) * out.row + done + i];
    }
    done += line.count;
  }
}

template <class T, class Left, class Right>
void correlate_blocks(const Correlation<T>& of, const Cut& cut, int64_t first, int64_t last, Left& left,
                      Right& right) {
  const int64_t rows = of.channels_last ? of.from.columns() : of.channels;
  const int64_t columns = of.channels_last ? of.channels : of.from.columns();
  const bool together = lies_together(of);
  for (int64_t i = first; i < last; ++i) {
    const int64_t m = i % cut.down * cut.rows;
    const int64_t n = i / cut.down * cut.columns;
    const Block<T> block(m, std::min(rows, m + cut.rows), n, std::min(columns, n + cut.columns));
    const auto compute_into = [&](const auto& out) {
      sum_block<T>(block, of.from.terms(), left, right, out);
      add_bias(of, block, out);
    };
    if (!together) {
      const int64_t row = block.n1 - block.n0;
      const OutMatrix<T> out{scratch<T>(Buffer::Result, (block.m1 - block.m0) * row), row, block.m0,
                             block.n0};
      compute_into(out);
      scatter(of, block, out);
    } else if (of.channels_last) {
      compute_into(OutMatrix<T>{of.out, of.steps[2], 0, 0});
    } else {
      compute_into(OutPlanes<T>{of.out, of.image_step, of.channel_step, size_of(of.from.positions)});
    }
  }
}

template <class T>
HWY_INLINE void correlate(const Correlation<T>& of, const Cut& cut, int64_t first, int64_t last) {
  if (of.channels_last) {
    LeftPositions<T> left(of.from);
    RightMatrix<T> right({of.weights.data, of.weights.column, of.weights.row});
    correlate_blocks(of, cut, first, last, left, right);
  } else {
    LeftMatrix<T> left(of.weights);
    RightGather<T> right(of.from);
    correlate_blocks(of, cut, first, last, left, right);
  }
}

template <class T, class Right>
void sum_positions(const WeightGradient<T>& of, const Cut& cut, int64_t first, int64_t last, Right& right) {
  const int64_t terms = of.from.columns();
  LeftTerms<T> left(of.from, of.channels_last);
  const OutMatrix<T> out{of.out, of.channels, 0, 0};
  for (int64_t i = first; i < last; ++i) {
    const int64_t m = i % cut.down * cut.rows;
    const int64_t n = i / cut.down * cut.columns;
    const int64_t end = std::min(of.channels, n + cut.columns);
    if (of.out != nullptr) {
      const Block<T> block(m, std::min(of.from.terms(), m + cut.rows), n, end);
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
    RightMatrix<T> right({of.gradient, of.image_step / size_of(of.from.positions), 1});
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

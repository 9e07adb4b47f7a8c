#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "tutti/kernels/products.h"

namespace tutti::kernels {

// Convolutions are products (products.h) of the weights with a matrix whose elements are read from the images
// where they are needed. The order of operations is the same for every memory format: each element is the sum
// of chains of 256 terms, as in products.h, and then the bias is added. The terms are, in this order, with t
// for the taps of the kernel (the last dimension runs fastest), for channels i and o of a group:
//   output[n][o][j]     weight[o][i][t] * input[n][i][j * stride + t * dilation - padding]    over t, then i
//   by input [n][i][x]  weight[o][i][t] * gradient[n][o][j]                                   over t, then o,
//                       for those t for which x = j * stride + t * dilation - padding has an integer j
//   by weight [o][i][t] gradient[n][o][j] * input[n][i][j * stride + t * dilation - padding]  over n, then j
//   by bias [o]         gradient[n][o][j] * 1                                                 over n, then j
// Elements outside of the images are left out if are_left_out() says so, else they are zeros, which are
// multiplied and added like others. The sums differ only for weights, or gradients, that are infinite or NaN,
// and in the sign of a zero. A transposed convolution is the gradient by input of the convolution whose input
// is its output.

// Three dimensions of space; a convolution of fewer dimensions has sizes of 1 in front.
using Space = std::array<int64_t, 3>;

inline int64_t size_of(const Space& space) { return space[0] * space[1] * space[2]; }

// Returns true if what lies outside of the images is left out: if the channels of the result fill vectors, so
// that one position is computed for all channels at once. This depends on the sizes alone.
inline bool are_left_out(int64_t channels_of_result) {
  return channels_of_result % 16 == 0 || channels_of_result >= 48;
}
// For the gradient by weight.
inline bool are_left_out_of_gradient(int64_t channels_of_input) { return channels_of_input >= 8; }

// The matrix of terms: row `term`, column (image, position) is
//   data[image * image_step + terms[term] + positions[position]]
// The images have zeros around them, as far as the taps reach, unless what is outside is left out.
template <class T>
struct Gather {
  int64_t terms_count() const { return static_cast<int64_t>(terms.size()); }
  int64_t size() const { return static_cast<int64_t>(positions.size()); }  // of one image

  const T* data;
  const T* end;  // of the memory that may be read
  int64_t images;
  int64_t image_step;
  int64_t line;  // so many positions are at a distance of `step` from each other
  int64_t step;
  std::span<const int64_t> terms;
  std::span<const int64_t> positions;
};

// Says where a product finds its columns in one image. Dense columns are its positions. Spread columns have
// gaps between the lines of the image, so that each vector of them can be read where it is.
struct Columns {
  // A line: its first column, and the position of that.
  struct Run {
    int64_t column;
    int64_t position;
  };
  bool spread() const { return !starts.empty(); }

  int64_t count;  // of one image, with gaps
  std::vector<Run> runs;
  std::vector<int64_t> starts;  // if spread: of each 64 bytes of columns, what is added to the image and term
};

// Positions that have the same terms. Row r of the panels of a product is term r of their chain.
struct KindOfPosition {
  std::vector<int64_t> offsets;  // of each term: what is added to the position; and one more
  std::vector<int64_t> rows;     // of each term, and one more
  std::vector<int64_t> chains;   // the first term of each chain, and the end
};

// The sums over all terms, for each position: element (image, channel, position) of the result is
//   out[image * image_step + channel * channel_step + positions[position]]
template <class T>
struct Correlation {
  Gather<T> from;
  const Columns* columns;  // nullptr: what is outside is left out, and the channels lie together
  std::span<const KindOfPosition> kinds;  // without columns
  std::span<const int64_t> kind_of;       // each position
  Matrix<const T> weights;                // (channel of the result, term)
  int64_t channels;
  T* out;
  int64_t image_step;
  int64_t channel_step;
  int64_t step;  // between the positions of a line
  std::span<const int64_t> positions;
  const T* bias;  // of each channel, or nullptr
};

// The sums over all positions, for each term and channel of the gradient: out[term * channels + channel]. The
// positions of the gradient lie together in memory. With channels_last, the positions of all images do so
// too.
template <class T>
struct WeightGradient {
  Gather<T> from;
  std::span<const uint8_t> inside;  // (tap, position): 1 if the tap is inside; empty: there are zeros outside
  int64_t input_channels;
  const T* gradient;
  int64_t image_step;
  int64_t channel_step;
  int64_t channels;
  bool channels_last;
  T* out;       // nullptr: not wanted
  T* bias_out;  // of each channel; nullptr: not wanted
};

// They are computed in blocks, of which any thread may compute some.
template <class T>
Cut cut_of(const Correlation<T>& of, int64_t threads) {
  return of.columns == nullptr ? Cut(of.from.images * of.from.size(), of.channels, sizeof(T), threads)
                               : Cut(of.channels, of.from.images * of.columns->count, sizeof(T), threads);
}
template <class T>
Cut cut_of(const WeightGradient<T>& of, int64_t threads) {
  // Each block reads all positions of its channels.
  return {of.out == nullptr ? 1 : of.from.terms_count(), of.channels, sizeof(T), threads, /*few=*/true};
}

void compute(const Correlation<float>& correlation, const Cut& cut, int64_t first, int64_t last);
void compute(const Correlation<double>& correlation, const Cut& cut, int64_t first, int64_t last);
void compute(const WeightGradient<float>& gradient, const Cut& cut, int64_t first, int64_t last);
void compute(const WeightGradient<double>& gradient, const Cut& cut, int64_t first, int64_t last);

}  // namespace tutti::kernels

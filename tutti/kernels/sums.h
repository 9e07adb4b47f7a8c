#pragma once

#include <cstdint>

namespace tutti::kernels {

// The order of operations of every sum of this module, which is the same on every processor, with any number
// of threads, and for every layout of the operands in memory. A sum of n terms is made as follows:
//   - Blocks of 4096 terms, the last of which may be shorter, are summed one by one.
//   - Four terms of a block are joined in the type in which they are made: group(i) is (term(i) + term(i +
//   32))
//     + (term(i + 16) + term(i + 48)), where terms behind the end are 0. All that follows is made of doubles.
//   - In a block, lane l of 16 is ((0 + group(l)) + group(l + 64)) + group(l + 128) + ...
//   - The lanes are joined as a tree: lane l + lane (l + 8) for l < 8, then + lane (l + 4), (l + 2), (l + 1).
//   - Neighbouring blocks are joined in pairs, then the pairs in pairs, and so on; a single one at the end
//     waits for its neighbour.
// Terms are made in the type of the elements, in floats if that is narrower. Those of Terms::Squares, Moments
// and Factors are made in doubles, of elements that are widened. The result is rounded once.
inline constexpr int64_t kBlockTerms = 4096;
inline constexpr int64_t kSumLanes = 16;
inline constexpr int64_t kGroup = 4;

// How the terms of sums are made of elements x.
enum class Terms {
  Elements,  // x
  Squares,   // x * x
  Moments,   // two sums: y and y * y, with y = x - shift
  Products,  // two sums: z and z * y, with y = x - shift, and z the element of a second tensor
  Factors,   // x, which are multiplied, and not added, in the same order
};

// Sums of at most kBlockTerms terms each, `outer` rows of `width` sums. Term i of sum (o, c) is made of
// data[o * outer_step + i * step + c]. If width is 1, then step may be 1.
template <class T>
struct SumBlock {
  const T* data;
  const T* second;  // of Terms::Products: the second tensor, which lies as the first one does
  int64_t terms;
  int64_t step;
  int64_t outer;
  int64_t outer_step;
  int64_t width;
  const double* shift;  // of Terms::Moments and Terms::Products: one for each sum
};

// Writes sum (o, c) to sums[o * width + c], and the second ones `distance` elements later.
void sum_block(Terms terms, const SumBlock<float>& block, double* sums, int64_t distance);
void sum_block(Terms terms, const SumBlock<double>& block, double* sums, int64_t distance);

}  // namespace tutti::kernels

#pragma once

#include <cstdint>

namespace tutti::kernels {

// One draw of random numbers: each of its elements is a function of these two numbers and of its index, so
// that neither the width of the vectors nor the number of threads changes a bit. The numbers are those of
// Philox 4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
// Block i is Philox with this key, whose counter has i in the lower and `number` in the upper 64 bits.
struct Draw {
  uint64_t key;
  uint64_t number;
};

// The elements in which a draw can be cut: a multiple of the 16 (8) blocks in which elements of 4 (8) bytes
// are made. Of 16 blocks the first words come first, then all second words, and so on.
inline constexpr int64_t kDrawPiece = 4096;

// Distributions with parameters a and b. With u, a uniform number between 0 and 1:
enum class Distribution {
  kUniform,      // from a to b, without b: a + u (b - a); u has 24 (53) bits
  kNormal,       // with mean a and standard deviation b, by Box and Muller
  kExponential,  // with rate a: -log(u) / a, never 0
  kCauchy,       // with median a and scale b: the tangent of a uniform angle
  kGeometric,    // trials up to the first success of probability a, rounded up: log(u) / log(1 - a)
};

// Each of these functions writes elements `first` to `last` of a draw to out[0] and after. `first` must be a
// multiple of kDrawPiece.
void fill(Distribution distribution, const Draw& draw, int64_t first, int64_t last, float a, float b,
          float* out);
void fill(Distribution distribution, const Draw& draw, int64_t first, int64_t last, double a, double b,
          double* out);

// 1 with probability p, or else 0; `p` is rounded to a multiple of 2^-32. Both types have the same elements.
void bernoulli(const Draw& draw, int64_t first, int64_t last, double p, float* out);
void bernoulli(const Draw& draw, int64_t first, int64_t last, double p, bool* out);

// Writes `factor` times the elements of bernoulli() to `noise`, and x * noise to `out`. All begin with
// element `first`.
void drop(const Draw& draw, int64_t first, int64_t last, double p, float factor, const float* x, float* noise,
          float* out);

// Integers from `base` to base + range - 1, all of them if `range` is 0 for 2^64. The probabilities differ by
// less than range / 2^64 of themselves.
void integers(const Draw& draw, int64_t first, int64_t last, int64_t base, uint64_t range, int64_t* out);

// A random order of the integers from 0 to count - 1.
void permutation(const Draw& draw, int64_t count, int64_t* out);

}  // namespace tutti::kernels

#pragma once

#include <cstdint>

namespace tutti::kernels {

// Rows of tables that are added one by one, in the order of their positions: each element is one chain of
// fused multiply-adds, fma(scale(i), row(i), ... fma(scale(0), row(0), 0)). All scales are 1 if there are
// none.

// Sums `count` rows of a table: out is a row of `width` elements. Positions whose index is negative are left
// out.
template <class T>
struct GatheredRows {
  const T* table;
  int64_t width;
  const int64_t* indices;
  const T* scales;
  int64_t count;
  T* out;
};

void sum_rows(const GatheredRows<float>& rows);
void sum_rows(const GatheredRows<double>& rows);

// Adds row sources[i] of `from`, or row i if there are no sources, to row targets[i] of `to`, for those of
// `count` positions whose target is at least `first` and below `last`.
template <class T>
struct ScatteredRows {
  const T* from;
  int64_t width;
  const int64_t* sources;
  const int64_t* targets;
  const T* scales;
  int64_t count;
  int64_t first;
  int64_t last;
  T* to;
};

void add_rows(const ScatteredRows<float>& rows);
void add_rows(const ScatteredRows<double>& rows);

}  // namespace tutti::kernels

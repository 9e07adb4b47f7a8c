#include "tutti/kernels/largest.h"

#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tutti/kernels/largest.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "tutti/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

// Loads elements that are one or two apart.
template <class D>
HWY_INLINE hn::Vec<D> load_apart(D d, const float* from, int64_t apart) {
  if (apart == 1) return hn::LoadU(d, from);
  hn::Vec<D> loaded;
  hn::Vec<D> between;
  hn::LoadInterleaved2(d, from, loaded, between);
  return loaded;
}

// One row of windows.
struct Row {
  const Windows& of;
  const float* plane;
  const float* end;  // of all planes
  float* values;
  int64_t* places;
  int64_t top;        // the row of the plane at which the windows begin, if they were not cut
  int64_t first_tap;  // the rows of the kernel that lie inside
  int64_t end_of_taps;
};

HWY_INLINE void find_in_window(const Row& row, int64_t column) {
  const Windows& of = row.of;
  const int64_t left = column * of.stride_width - of.padding_width;
  float largest = -std::numeric_limits<float>::infinity();
  int64_t place = -1;
  for (int64_t i = row.first_tap; i < row.end_of_taps; ++i) {
    for (int64_t j = 0; j < of.kernel_width; ++j) {
      const int64_t x = left + j * of.dilation_width;
      if (x < 0 || x >= of.width) continue;
      const int64_t here = (row.top + i * of.dilation_height) * of.width + x;
      if (place < 0) place = here;
      const float value = row.plane[here];
      if (!(value > largest) && !std::isnan(value)) continue;
      largest = value;
      place = here;
    }
  }
  row.values[column] = largest;
  row.places[column] = place;
}

// Finds the largest elements of as many windows as a vector has lanes, all of which lie inside in their
// width.
template <class D>
HWY_INLINE void find_in_windows(D d, const Row& row, int64_t column) {
  const hn::RebindToSigned<D> di;
  const Windows& of = row.of;
  const int64_t left = column * of.stride_width - of.padding_width;
  const auto place_at = [&](int64_t i, int64_t j) {
    return (row.top + i * of.dilation_height) * of.width + left + j * of.dilation_width;
  };
  const auto offsets = hn::Mul(hn::Iota(di, 0), hn::Set(di, static_cast<int32_t>(of.stride_width)));
  auto largest = hn::Set(d, -std::numeric_limits<float>::infinity());
  auto places = hn::Add(offsets, hn::Set(di, static_cast<int32_t>(place_at(row.first_tap, 0))));
  for (int64_t i = row.first_tap; i < row.end_of_taps; ++i) {
    for (int64_t j = 0; j < of.kernel_width; ++j) {
      const auto values = load_apart(d, row.plane + place_at(i, j), of.stride_width);
      const auto here = hn::Add(offsets, hn::Set(di, static_cast<int32_t>(place_at(i, j))));
      const auto is_larger = hn::Or(hn::Gt(values, largest), hn::IsNaN(values));
      largest = hn::IfThenElse(is_larger, values, largest);
      places = hn::IfThenElse(hn::RebindMask(di, is_larger), here, places);
    }
  }
  hn::StoreU(largest, d, row.values + column);
  HWY_ALIGN int32_t found[hn::MaxLanes(D())];
  hn::Store(places, di, found);
  std::copy_n(found, hn::Lanes(d), row.places + column);
}

// Returns the column behind the last window that a vector of this type has found.
template <class D>
HWY_INLINE int64_t find_in_row(D d, const Row& row, int64_t column, int64_t end) {
  const Windows& of = row.of;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (; column + lanes <= end; column += lanes) {
    const int64_t last_place = (row.top + (row.end_of_taps - 1) * of.dilation_height) * of.width +
                               column * of.stride_width - of.padding_width +
                               (of.kernel_width - 1) * of.dilation_width + lanes * of.stride_width;
    if (row.end - row.plane < last_place) return column;
    find_in_windows(d, row, column);
  }
  return column;
}

void find_all_largest(const Windows& of, const float* planes, int64_t count, float* values, int64_t* places) {
  // The windows that lie inside in their width.
  const int64_t begin = std::min(of.columns, (of.padding_width + of.stride_width - 1) / of.stride_width);
  const int64_t reach = of.width + of.padding_width - (of.kernel_width - 1) * of.dilation_width;
  const int64_t inside = reach > 0 ? (reach + of.stride_width - 1) / of.stride_width : 0;
  const int64_t end = std::max(begin, std::min(of.columns, inside));
  const bool fits = of.stride_width <= 2 && of.height * of.width <= std::numeric_limits<int32_t>::max() / 2;
  for (int64_t plane = 0; plane < count; ++plane) {
    for (int64_t r = 0; r < of.rows; ++r) {
      const int64_t top = r * of.stride_height - of.padding_height;
      const int64_t above = top < 0 ? (-top + of.dilation_height - 1) / of.dilation_height : 0;
      const int64_t below = (of.height - top + of.dilation_height - 1) / of.dilation_height;
      const int64_t at = (plane * of.rows + r) * of.columns;
      const Row row{of,
                    planes + plane * of.height * of.width,
                    planes + count * of.height * of.width,
                    values + at,
                    places + at,
                    top,
                    above,
                    std::min(of.kernel_height, below)};
      int64_t column = 0;
      for (; column < begin; ++column) find_in_window(row, column);
      if (fits) {
        column = find_in_row(Tag<float>(), row, column, end);
        column = find_in_row(hn::CappedTag<float, 4>(), row, column, end);
      }
      for (; column < of.columns; ++column) find_in_window(row, column);
    }
  }
}

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tutti::kernels {

HWY_EXPORT(find_all_largest);

void find_largest(const Windows& windows, const float* planes, int64_t count, float* values,
                  int64_t* places) {
  HWY_DYNAMIC_DISPATCH(find_all_largest)(windows, planes, count, values, places);
}

}  // namespace tutti::kernels
#endif

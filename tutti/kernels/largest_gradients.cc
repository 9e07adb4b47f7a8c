#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tutti/kernels/largest_gradients.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "tutti/kernels/largest.h"
#include "tutti/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

// Places, which are compared as 32-bit numbers, and as many floats.
using Places = hn::CappedTag<int64_t, 8>;
using Numbers = hn::Rebind<float, Places>;
using Halved = hn::Rebind<uint32_t, Places>;
inline constexpr auto kPlaces = static_cast<int64_t>(hn::MaxLanes(Places()));

// Windows beside each other that cover one row, or one column, of a plane.
struct Covering {
  Covering(int64_t at, int64_t kernel, int64_t stride, int64_t padding, int64_t windows)
      : first(at + padding < kernel ? 0 : (at + padding - kernel) / stride + 1),
        end(std::min(windows, (at + padding) / stride + 1)) {}

  int64_t first;
  int64_t end;
};

HWY_INLINE hn::Vec<Halved> load_places(const int64_t* from) {
  const hn::RebindToUnsigned<Places> whole;
  return hn::TruncateTo(Halved(), hn::BitCast(whole, hn::LoadU(Places(), from)));
}

// Returns the gradients of the windows that found the places `here`, 0 of the others.
HWY_INLINE hn::Vec<Numbers> chosen(hn::Vec<Halved> places, hn::Vec<Halved> here, hn::Vec<Numbers> gradient,
                                   int64_t& found) {
  const Numbers d;
  const auto is_here = hn::RebindMask(d, hn::Eq(places, here));
  found += static_cast<int64_t>(hn::CountTrue(d, is_here));
  return hn::IfThenElseZero(is_here, gradient);
}

// One row of a plane, whose windows begin at `windows` in the gradients and places of all windows.
struct GradientRow {
  const LargestGradients& all;
  int64_t y;
  int64_t windows;
  float* out;
};

// Channels lie together.
HWY_INLINE int64_t spread_over_channels(const GradientRow& row) {
  const LargestGradients& all = row.all;
  const Windows& of = all.of;
  const Covering rows(row.y, of.kernel_height, of.stride_height, of.padding_height, of.rows);
  int64_t found = 0;
  for (int64_t x = 0; x < of.width; ++x) {
    const Covering columns(x, of.kernel_width, of.stride_width, of.padding_width, of.columns);
    const int64_t place = row.y * of.width + x;
    const auto here = hn::Set(Halved(), static_cast<uint32_t>(place));
    float* const out = row.out + x * all.channels;
    int64_t c = 0;
    for (; c + kPlaces <= all.channels; c += kPlaces) {
      auto sum = hn::Zero(Numbers());
      for (int64_t r = rows.first; r < rows.end; ++r) {
        for (int64_t w = columns.first; w < columns.end; ++w) {
          const int64_t at = (row.windows + r * of.columns + w) * all.channels + c;
          const auto gradient = hn::LoadU(Numbers(), all.gradient + at);
          sum = hn::Add(sum, chosen(load_places(all.places + at), here, gradient, found));
        }
      }
      hn::StoreU(sum, Numbers(), out + c);
    }
    for (; c < all.channels; ++c) {
      out[c] = 0;
      for (int64_t r = rows.first; r < rows.end; ++r) {
        for (int64_t w = columns.first; w < columns.end; ++w) {
          const int64_t at = (row.windows + r * of.columns + w) * all.channels + c;
          if (all.places[at] != place) continue;
          out[c] += all.gradient[at];
          ++found;
        }
      }
    }
  }
  return found;
}

// One channel, of windows that are two elements wide, and lie beside each other.
HWY_INLINE int64_t spread_over_pairs(const GradientRow& row) {
  const LargestGradients& all = row.all;
  const Windows& of = all.of;
  const Covering rows(row.y, of.kernel_height, of.stride_height, of.padding_height, of.rows);
  const int64_t place = row.y * of.width;
  const Halved dp;
  const auto pairs = hn::Add(hn::Iota(dp, 0), hn::Iota(dp, 0));
  const auto one = hn::Set(dp, 1);
  int64_t found = 0;
  int64_t w = 0;
  for (; w + kPlaces <= of.columns; w += kPlaces) {
    const auto first = hn::Add(pairs, hn::Set(dp, static_cast<uint32_t>(place + 2 * w)));
    auto left = hn::Zero(Numbers());
    auto right = hn::Zero(Numbers());
    for (int64_t r = rows.first; r < rows.end; ++r) {
      const int64_t at = row.windows + r * of.columns + w;
      const auto places = load_places(all.places + at);
      const auto gradient = hn::LoadU(Numbers(), all.gradient + at);
      left = hn::Add(left, chosen(places, first, gradient, found));
      right = hn::Add(right, chosen(places, hn::Add(first, one), gradient, found));
    }
    hn::StoreInterleaved2(left, right, Numbers(), row.out + 2 * w);
  }
  std::fill(row.out + 2 * w, row.out + of.width, 0.0F);
  for (; w < of.columns; ++w) {
    for (int64_t r = rows.first; r < rows.end; ++r) {
      const int64_t at = row.windows + r * of.columns + w;
      const int64_t x = all.places[at] - place;
      if (x != 2 * w && x != 2 * w + 1) continue;
      row.out[x] += all.gradient[at];
      ++found;
    }
  }
  return found;
}

int64_t spread_over_rows(const LargestGradients& all, int64_t first, int64_t end) {
  const Windows& of = all.of;
  int64_t found = 0;
  for (int64_t r = first; r < end; ++r) {
    const GradientRow row{all, r % of.height, r / of.height * of.rows * of.columns,
                          all.out + r * of.width * all.channels};
    found += all.channels == 1 ? spread_over_pairs(row) : spread_over_channels(row);
  }
  return found;
}

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tutti::kernels {

HWY_EXPORT(spread_over_rows);

int64_t spread_gradients(const LargestGradients& all, int64_t first, int64_t end) {
  return HWY_DYNAMIC_DISPATCH(spread_over_rows)(all, first, end);
}

}  // namespace tutti::kernels
#endif

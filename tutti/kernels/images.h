#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tutti/kernels/convolutions.h"
#include "tutti/kernels/parallel.h"
#include "tutti/kernels/scratch.h"

// The images of convolutions in memory, and the tables by which the loops read them.
namespace tutti::kernels {

// How images lie in memory.
struct Images {
  Images(const Space& size, int64_t all_channels, bool channels_last) : sizes(size) {
    channel = channels_last ? 1 : size_of(size);
    const int64_t place = channels_last ? all_channels : 1;
    steps = {place * size[2] * size[1], place * size[2], place};
    image = size_of(size) * all_channels;
  }

  Space sizes;
  Space steps;
  int64_t image;
  int64_t channel;
};

// Returns all places of a space, the last dimension fastest.
inline std::vector<Space> places_of(const Space& sizes) {
  std::vector<Space> places;
  for (int64_t i = 0; i < sizes[0]; ++i)
    for (int64_t j = 0; j < sizes[1]; ++j)
      for (int64_t k = 0; k < sizes[2]; ++k) places.push_back({i, j, k});
  return places;
}

// How many zeros are needed before and after images in each dimension.
struct Margins {
  void cover(const Space& sizes, const Space& positions, const Space& stride,
             const std::vector<Space>& taps) {
    for (const Space& tap : taps) {
      for (size_t d = 0; d < 3; ++d) {
        before[d] = std::max(before[d], -tap[d]);
        after[d] = std::max(after[d], (positions[d] - 1) * stride[d] + tap[d] - (sizes[d] - 1));
      }
    }
  }
  bool needed() const { return before != Space{} || after != Space{}; }

  Space before = {};
  Space after = {};
};

// Which taps lie inside of the images, for each coordinate of a position in each dimension.
class Reach {
 public:
  Reach(const Space& sizes, const Space& positions, const Space& stride, const std::vector<Space>& taps)
      : positions_(positions), taps_(taps.size()) {
    for (size_t d = 0; d < 3; ++d) {
      for (int64_t x = 0; x < positions[d]; ++x) {
        std::vector<uint8_t> inside;
        for (const Space& tap : taps) {
          const int64_t at = x * stride[d] + tap[d];
          inside.push_back(at >= 0 && at < sizes[d] ? 1 : 0);
        }
        const auto found = std::find(sets_[d].begin(), sets_[d].end(), inside);
        set_of_[d].push_back(found - sets_[d].begin());
        if (found == sets_[d].end()) sets_[d].push_back(std::move(inside));
      }
    }
  }

  // The kinds of positions are all combinations of the sets of their coordinates.
  std::vector<int64_t> kind_of_positions() const {
    std::vector<int64_t> kinds;
    for (const Space& place : places_of(positions_)) kinds.push_back(kind_of(place));
    return kinds;
  }
  std::vector<std::vector<int64_t>> taps_of_kinds() const {
    std::vector<std::vector<int64_t>> kinds;
    for (const Space& sets : places_of({count(0), count(1), count(2)})) {
      std::vector<int64_t>& taps = kinds.emplace_back();
      for (size_t t = 0; t < taps_; ++t)
        if (holds(0, sets[0], t) && holds(1, sets[1], t) && holds(2, sets[2], t))
          taps.push_back(static_cast<int64_t>(t));
    }
    return kinds;
  }
  // (tap, position): 1 if the tap is inside.
  std::vector<uint8_t> inside() const {
    const std::vector<int64_t> kind_of = kind_of_positions();
    const std::vector<std::vector<int64_t>> taps_of = taps_of_kinds();
    std::vector<uint8_t> inside(taps_ * kind_of.size(), 0);
    for (size_t p = 0; p < kind_of.size(); ++p)
      for (const int64_t t : taps_of[static_cast<size_t>(kind_of[p])])
        inside[static_cast<size_t>(t) * kind_of.size() + p] = 1;
    return inside;
  }

 private:
  int64_t count(size_t d) const { return static_cast<int64_t>(sets_[d].size()); }
  bool holds(size_t d, int64_t set, size_t tap) const { return sets_[d][static_cast<size_t>(set)][tap] != 0; }
  int64_t kind_of(const Space& place) const {
    const auto set = [&](size_t d) { return set_of_[d][static_cast<size_t>(place[d])]; };
    return (set(0) * count(1) + set(1)) * count(2) + set(2);
  }

  const Space positions_;
  const size_t taps_;
  std::array<std::vector<std::vector<uint8_t>>, 3> sets_;  // of taps
  std::array<std::vector<int64_t>, 3> set_of_;             // each coordinate
};

// Images with zeros around them. There is one object at a time in a thread, whose buffer it uses.
template <class T>
class Surrounded {
 public:
  // `images` are contiguous in their format. With `copies`, vectors may be read beyond them.
  Surrounded(const at::Tensor& images, const Space& sizes, bool channels_last, const Margins& margins,
             bool copies)
      : images_(images),
        data_(images.data_ptr<T>()),
        size_(images.numel()),
        count_(images.size(0)),
        channels_(images.size(1)),
        before_(margins.before),
        layout_(sizes, channels_, channels_last) {
    if (!copies && !margins.needed()) return;
    Space padded;
    for (size_t d = 0; d < 3; ++d) padded[d] = before_[d] + sizes[d] + margins.after[d];
    layout_ = Images(padded, channels_, channels_last);
    constexpr int64_t kMore = 256 / sizeof(T);
    size_ = count_ * layout_.image + kMore;
    T* const copy = scratch<T>(Buffer::Images, size_);
    data_ = copy;
    std::fill_n(copy + size_ - kMore, kMore, T(0));
    const int64_t unit = channels_last ? channels_ : 1;
    const int64_t planes = count_ * channels_ / unit;
    in_parallel(planes, size_of(padded) * unit, [&](int64_t first, int64_t last) {
      for (int64_t plane = first; plane < last; ++plane)
        copy_plane(images_.data_ptr<T>() + plane * size_of(sizes) * unit, sizes,
                   copy + plane * size_of(padded) * unit, unit);
    });
  }

  const Images& layout() const { return layout_; }
  const T* data() const { return data_; }
  const T* end() const { return data_ + size_; }
  int64_t count() const { return count_; }

  // Where a place is in the first image.
  int64_t offset(const Space& place) const {
    int64_t offset = 0;
    for (size_t d = 0; d < 3; ++d) offset += (place[d] + before_[d]) * layout_.steps[d];
    return offset;
  }

 private:
  void copy_plane(const T* from, const Space& sizes, T* to, int64_t unit) const {
    const Space& padded = layout_.sizes;
    for (int64_t z = 0; z < padded[0]; ++z) {
      for (int64_t y = 0; y < padded[1]; ++y, to += padded[2] * unit) {
        const int64_t z0 = z - before_[0];
        const int64_t y0 = y - before_[1];
        if (z0 < 0 || z0 >= sizes[0] || y0 < 0 || y0 >= sizes[1]) {
          std::fill_n(to, padded[2] * unit, T(0));
          continue;
        }
        T* at = std::fill_n(to, before_[2] * unit, T(0));
        at = std::copy_n(from + (z0 * sizes[1] + y0) * sizes[2] * unit, sizes[2] * unit, at);
        std::fill(at, to + padded[2] * unit, T(0));
      }
    }
  }

  const at::Tensor images_;
  const T* data_;
  int64_t size_;
  int64_t count_;
  int64_t channels_;
  Space before_;
  Images layout_;
};

// The matrix of terms, with the memory of its tables.
template <class T>
class ConvolutionTerms {
 public:
  ConvolutionTerms(const Surrounded<T>& from, int64_t channels, const Space& positions, const Space& stride,
                   const std::vector<Space>& taps)
      : sizes_(positions), stride_(stride), layout_(from.layout()) {
    const int64_t origin = from.offset({});
    for (const Space& tap : taps)
      for (int64_t c = 0; c < channels; ++c) terms_.push_back(from.offset(tap) + c * layout_.channel);
    for (const Space& position : places_of(positions)) {
      const Space place = {position[0] * stride[0], position[1] * stride[1], position[2] * stride[2]};
      positions_.push_back(from.offset(place) - origin);
    }
    gather_ = {from.data(),   from.end(),   from.count(),
               layout_.image, positions[2], stride[2] * layout_.steps[2],
               terms_,        positions_};
  }
  ConvolutionTerms(const ConvolutionTerms&) = delete;
  ConvolutionTerms& operator=(const ConvolutionTerms&) = delete;

  const Gather<T>& gather() const { return gather_; }

  // Returns what positions have of the terms, `channels` for each tap.
  std::vector<KindOfPosition> kinds(const Reach& reach, int64_t channels) const {
    const int64_t count = gather_.terms_count();
    std::vector<KindOfPosition> kinds;
    for (const std::vector<int64_t>& taps : reach.taps_of_kinds()) {
      KindOfPosition& kind = kinds.emplace_back();
      const auto chains_until = [&](int64_t end) {
        while (static_cast<int64_t>(kind.chains.size()) < end)
          kind.chains.push_back(static_cast<int64_t>(kind.rows.size()));
      };
      for (const int64_t tap : taps) {
        for (int64_t term = tap * channels; term < (tap + 1) * channels; ++term) {
          chains_until(term / kChain + 1);
          kind.offsets.push_back(terms_[static_cast<size_t>(term)]);
          kind.rows.push_back(term % kChain);
        }
      }
      chains_until(std::max<int64_t>(1, (count + kChain - 1) / kChain) +
                   1);  // one chain if there are no terms
      kind.offsets.push_back(0);
      kind.rows.push_back(0);
    }
    return kinds;
  }

  // Arranges the columns for a product with so many rows. Dense columns have to be copied. Spread ones cost
  // more in each row, since some are computed in vain and most vectors lie in two lines of the cache. Bits do
  // not depend on it.
  Columns columns(int64_t rows, size_t taps) const {
    constexpr int64_t kTogether = 64 / sizeof(T);
    const auto whole = [](int64_t count) { return (count + kTogether - 1) / kTogether * kTogether; };
    const int64_t width = sizes_[2];
    const int64_t lines = sizes_[0] * sizes_[1];
    const int64_t by_lines = lines * whole(width);
    const int64_t plane = whole((sizes_[1] - 1) * layout_.sizes[2] + width);
    const int64_t least = std::min(by_lines, sizes_[0] * plane);
    Columns columns{gather_.size(), {}, {}};
    const bool spreads = stride_ == Space{1, 1, 1} && taps > 1 &&
                         rows * (least - columns.count) <= kRowsOfCopy * columns.count;
    if (spreads) columns.count = least;
    for (int64_t line = 0; line < lines; ++line) {
      int64_t column = line * width;
      if (spreads && least == by_lines) {
        column = line * whole(width);
        for (int64_t x = 0; x < width; x += kTogether)
          columns.starts.push_back(positions_[static_cast<size_t>(line * width)] + x);
      } else if (spreads) {
        const int64_t y = line % sizes_[1];
        column = line / sizes_[1] * plane + y * layout_.sizes[2];
        for (int64_t x = 0; y == 0 && x < plane; x += kTogether)
          columns.starts.push_back(positions_[static_cast<size_t>(line * width)] + x);
      }
      columns.runs.push_back({column, line * width});
    }
    return columns;
  }

 private:
  static constexpr int64_t kRowsOfCopy = 6;  // a copy takes as long as about so many rows

  const Space sizes_;
  const Space stride_;
  const Images layout_;
  std::vector<int64_t> terms_;
  std::vector<int64_t> positions_;
  Gather<T> gather_;
};

}  // namespace tutti::kernels

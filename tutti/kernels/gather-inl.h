// Images as operands and result of blocks-inl.h, for convolutions. Included once per target, after
// hwy/foreach_target.h.
#if defined(TUTTI_KERNELS_GATHER_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TUTTI_KERNELS_GATHER_INL_H
#undef TUTTI_KERNELS_GATHER_INL_H
#else
#define TUTTI_KERNELS_GATHER_INL_H
#endif

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tutti/kernels/blocks-inl.h"
#include "tutti/kernels/convolutions.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

// Positions that follow each other in one line of one image.
struct Line {
  int64_t image;
  Space position;  // of the first one
  int64_t count;
};

// Appends the lines of positions `first` to `last` of all images to `lines`, which is cleared before.
inline void lines_of(const Space& positions, int64_t first, int64_t last, std::vector<Line>& lines) {
  lines.clear();
  while (first < last) {
    const int64_t line = first / positions[2];
    const int64_t plane = line / positions[1];
    const Space position = {plane % positions[0], line % positions[1], first % positions[2]};
    const int64_t count = std::min(last - first, positions[2] - position[2]);
    lines.push_back({plane / positions[0], position, count});
    first += count;
  }
}

// A line as one tap sees it: zeros until `begin`, elements until `end`, and zeros until `count`.
struct Piece {
  int64_t from;  // of the place that belongs to the first element of the line, in the first channel
  int64_t begin;
  int64_t end;
  int64_t count;
};

template <class T>
void pieces_of(const Gather<T>& of, const std::vector<Line>& lines, const Space& tap,
               std::vector<Piece>& pieces) {
  pieces.clear();
  const int64_t stride = of.stride[2];
  for (const Line& line : lines) {
    int64_t from = line.image * of.image_step;
    bool inside = true;
    Space at;
    for (size_t d = 0; d < 3; ++d) {
      at[d] = line.position[d] * of.stride[d] + tap[d];
      from += at[d] * of.steps[d];
      if (d < 2) inside = inside && at[d] >= 0 && at[d] < of.sizes[d];
    }
    // The first element with at + i * stride >= 0, and the first one with at + i * stride >= size.
    const int64_t begin = at[2] >= 0 ? 0 : (-at[2] + stride - 1) / stride;
    const int64_t end = at[2] >= of.sizes[2] ? 0 : (of.sizes[2] - at[2] + stride - 1) / stride;
    if (inside && begin < std::min(end, line.count))
      pieces.push_back({from, begin, std::min(end, line.count), line.count});
    else
      pieces.push_back({0, 0, 0, line.count});
  }
}

// Copies rows of the matrix of terms: for each of them the elements of a range of columns, side by side.
template <class T>
class GatherRows {
 public:
  explicit GatherRows(const Gather<T>& of) : of_(of) {}

  void set_columns(int64_t first, int64_t last) { lines_of(of_.positions, first, last, lines_); }

  // Copies rows `first` to `last`, each to to(row), which has room for `room` elements.
  template <class To>
  void copy(int64_t first, int64_t last, int64_t room, const To& to) {
    const int64_t step = of_.steps[2] * of_.stride[2];
    while (first < last) {
      const int64_t tap = first / of_.channels;
      const int64_t end = std::min(last, (tap + 1) * of_.channels);
      pieces_of(of_, lines_, of_.taps[static_cast<size_t>(tap)], pieces_);
      const T* const from = of_.data + (first - tap * of_.channels) * of_.channel_step;
      if (kInVectors && step <= 2) {
        copy_chunks(from, step, first, end, room, to);
      } else {
        for (int64_t row = first; row < end; ++row)
          copy_pieces(from + (row - first) * of_.channel_step, step, to(row));
      }
      first = end;
    }
  }

 private:
  // Loads with a mask may read outside of the images, but for targets on which they could fail.
  static constexpr bool kInVectors = !HWY_MEM_OPS_MIGHT_FAULT && kLanes<T> > 1;

  // Lanes begin to end.
  static hn::Mask<Tag<T>> lanes(int64_t begin, int64_t end) {
    const Tag<T> d;
    const auto first = [&](int64_t count) {
      return hn::FirstN(d, static_cast<size_t>(std::clamp<int64_t>(count, 0, kLanes<T>)));
    };
    return hn::AndNot(first(begin), first(end));
  }

  // Copies vectors, each of them for all rows. What a vector has beyond its line is overwritten by the next
  // one.
  template <class To>
  HWY_INLINE void copy_chunks(const T* from, int64_t step, int64_t first, int64_t end, int64_t room,
                              const To& to) const {
#if HWY_TARGET != HWY_SCALAR
    const Tag<T> d;
    int64_t at = 0;
    for (const Piece& piece : pieces_) {
      for (int64_t i = 0; i < piece.count; i += kLanes<T>) {
        const T* source = from + piece.from + i * step;
        const int64_t left = std::max<int64_t>(0, piece.begin - i);
        const int64_t right = std::max<int64_t>(0, piece.end - i);
        const bool fits = at + i + kLanes<T> <= room;
        const auto rest = lanes(0, room - at - i);
        // With a step of two, every other element of two vectors.
        const auto low = step == 1 ? lanes(left, right) : lanes(2 * left, 2 * right - 1);
        const auto high = lanes(2 * left - kLanes<T>, 2 * right - 1 - kLanes<T>);
        for (int64_t row = first; row < end; ++row, source += of_.channel_step) {
          auto elements = hn::MaskedLoad(low, d, source);
          if (step == 2) elements = hn::ConcatEven(d, hn::MaskedLoad(high, d, source + kLanes<T>), elements);
          if (fits)
            hn::StoreU(elements, d, to(row) + at + i);
          else
            hn::BlendedStore(elements, rest, d, to(row) + at + i);
        }
      }
      at += piece.count;
    }
#else
    static_cast<void>(room);
    for (int64_t row = first; row < end; ++row)
      copy_pieces(from + (row - first) * of_.channel_step, step, to(row));
#endif
  }

  void copy_pieces(const T* from, int64_t step, T* to) const {
    for (const Piece& piece : pieces_) {
      std::fill_n(to, piece.begin, T(0));
      if (step == 1)
        std::copy_n(from + piece.from + piece.begin, piece.end - piece.begin, to + piece.begin);
      else
        for (int64_t i = piece.begin; i < piece.end; ++i) to[i] = from[piece.from + i * step];
      std::fill(to + piece.end, to + piece.count, T(0));
      to += piece.count;
    }
  }

  const Gather<T>& of_;
  std::vector<Line> lines_;
  std::vector<Piece> pieces_;
};

// Copies columns of the matrix of terms, for images whose channels lie together.
template <class T>
class GatherColumns {
 public:
  explicit GatherColumns(const Gather<T>& of) : of_(of) {}

  // For the columns and rows in these ranges, calls put(column, row, from, count) for each run of `count`
  // rows from `row` on that lie together at `from`, or are zeros if that is nullptr.
  template <class Put>
  HWY_INLINE void copy(int64_t first_column, int64_t last_column, int64_t first_row, int64_t last_row,
                       const Put& put) {
    lines_of(of_.positions, first_column, last_column, lines_);
    const int64_t step = of_.steps[2] * of_.stride[2];
    for (int64_t row = first_row; row < last_row;) {
      const int64_t tap = row / of_.channels;
      const int64_t channel = row - tap * of_.channels;
      const int64_t count = std::min(last_row - row, of_.channels - channel);
      pieces_of(of_, lines_, of_.taps[static_cast<size_t>(tap)], pieces_);
      int64_t column = first_column;
      for (const Piece& piece : pieces_) {
        const T* const from = of_.data + piece.from + channel;
        for (int64_t i = 0; i < piece.count; ++i)
          put(column++, row, i >= piece.begin && i < piece.end ? from + i * step : nullptr, count);
      }
      row += count;
    }
  }

 private:
  const Gather<T>& of_;
  std::vector<Line> lines_;
  std::vector<Piece> pieces_;
};

// The matrix of terms as the right operand: its rows are the terms of the product.
template <class T>
class RightGather {
 public:
  explicit RightGather(const Gather<T>& of) : rows_(of) {}

  void pack(int64_t p0, int64_t length, const Block<T>& block, T* buffer) {
    first_ = block.n0;
    packed_ = buffer;
    width_ = block.width;
    for (int64_t n = block.n0; n < block.n1; n += width_, buffer += kRightPanelSize<T>) {
      rows_.set_columns(n, std::min(block.n1, n + width_));
      rows_.copy(p0, p0 + length, kColumns<T>, [&](int64_t p) { return buffer + (p - p0) * kColumns<T>; });
    }
  }

  RightPanel<T> panel(int64_t n) const {
    return {packed_ + (n - first_) / width_ * kRightPanelSize<T>, kColumns<T>};
  }

 private:
  GatherRows<T> rows_;
  int64_t width_ = kColumns<T>;
  int64_t first_ = 0;
  const T* packed_ = nullptr;
};

// Panels of a left operand that are always packed.
template <class T>
class LeftPanels {
 public:
  // Where the first term of a row goes.
  struct Row {
    T* panel;
    int64_t in_panel;
  };

  void begin(const Block<T>& block, T* buffer) {
    first_ = block.m0;
    height_ = block.height;
    packed_ = buffer;
    rows_.clear();
    for (int64_t m = 0; m < block.m1 - block.m0; ++m)
      rows_.push_back({packed_ + m / height_ * kLeftPanelSize<T>, m % height_});
  }
  const Row& row(int64_t m) const { return rows_[static_cast<size_t>(m - first_)]; }
  T* panel_of(int64_t m) const { return packed_ + (m - first_) / height_ * kLeftPanelSize<T>; }
  int64_t height() const { return height_; }

 private:
  int64_t first_ = 0;
  int64_t height_ = kRows;
  T* packed_ = nullptr;
  std::vector<Row> rows_;
};

// The columns of the matrix of terms as rows of the left operand: for results whose channels lie together.
template <class T>
class LeftPositions {
 public:
  explicit LeftPositions(const Gather<T>& of) : columns_(of) {}

  void pack(int64_t p0, int64_t length, const Block<T>& block, T* buffer) {
    panels_.begin(block, buffer);
    columns_.copy(block.m0, block.m1, p0, p0 + length,
                  [&](int64_t m, int64_t p, const T* from, int64_t count) {
                    const auto& row = panels_.row(m);
                    T* const to = row.panel + row.in_panel * kRowStride<T> + (p - p0);
                    if (from != nullptr)
                      std::copy_n(from, count, to);
                    else
                      std::fill_n(to, count, T(0));
                  });
  }

  LeftPanel<T> panel(int64_t m) const { return {panels_.panel_of(m), kRowStride<T>, 1}; }

 private:
  GatherColumns<T> columns_;
  LeftPanels<T> panels_;
};

// The rows of the matrix of terms as rows of the left operand: for sums over positions.
template <class T>
class LeftTerms {
 public:
  LeftTerms(const Gather<T>& of, bool channels_last)
      : channels_last_(channels_last), rows_(of), columns_(of) {}

  void pack(int64_t p0, int64_t length, const Block<T>& block, T* buffer) {
    panels_.begin(block, buffer);
    if (!channels_last_) {
      rows_.set_columns(p0, p0 + length);
      rows_.copy(block.m0, block.m1, kRowStride<T>, [&](int64_t m) {
        const auto& row = panels_.row(m);
        return row.panel + row.in_panel * kRowStride<T>;
      });
      return;
    }
    columns_.copy(p0, p0 + length, block.m0, block.m1,
                  [&](int64_t p, int64_t m, const T* from, int64_t count) {
                    const auto& row = panels_.row(m);
                    T* panel = row.panel + (p - p0) * kRows;
                    int64_t in_panel = row.in_panel;
                    while (count > 0) {
                      const int64_t here = std::min(count, panels_.height() - in_panel);
                      copy_short(from, here, panel + in_panel);
                      if (from != nullptr) from += here;
                      count -= here;
                      in_panel = 0;
                      panel += kLeftPanelSize<T>;
                    }
                  });
  }

  LeftPanel<T> panel(int64_t m) const {
    return channels_last_ ? LeftPanel<T>{panels_.panel_of(m), 1, kRows}
                          : LeftPanel<T>{panels_.panel_of(m), kRowStride<T>, 1};
  }

 private:
  // Copies at most kRows elements.
  static HWY_INLINE void copy_short(const T* from, int64_t count, T* to) {
#if !HWY_MEM_OPS_MIGHT_FAULT && HWY_TARGET != HWY_SCALAR
    const Tag<T> d;
    for (int64_t i = 0; i < count; i += kLanes<T>) {
      const auto lanes = hn::FirstN(d, static_cast<size_t>(count - i));
      hn::BlendedStore(from == nullptr ? hn::Zero(d) : hn::MaskedLoad(lanes, d, from + i), lanes, d, to + i);
    }
#else
    for (int64_t i = 0; i < count; ++i) to[i] = from == nullptr ? T(0) : from[i];
#endif
  }

  const bool channels_last_;
  GatherRows<T> rows_;
  GatherColumns<T> columns_;
  LeftPanels<T> panels_;
};

// A left operand of one row of ones.
template <class T>
class LeftOnes {
 public:
  void pack(int64_t /*p0*/, int64_t /*length*/, const Block<T>& /*block*/, T* /*buffer*/) {}
  LeftPanel<T> panel(int64_t /*m*/) const { return {&one_, 0, 0}; }

 private:
  T one_ = 1;
};

// Positions (rows) and channels (columns) of contiguous images as the right operand.
template <class T>
class RightPlanes {
 public:
  RightPlanes(const WeightGradient<T>& of) : of_(of), size_(size_of(of.from.positions)) {}

  void pack(int64_t p0, int64_t length, const Block<T>& block, T* buffer) {
    first_ = block.n0;
    packed_ = buffer;
    width_ = block.width;
    for (int64_t n = block.n0; n < block.n1; n += width_, buffer += kRightPanelSize<T>) {
      const int64_t count = std::min(width_, block.n1 - n);
      for (int64_t p = p0; p < p0 + length;) {
        const int64_t image = p / size_;
        const int64_t end = std::min(p0 + length, (image + 1) * size_);
        const T* const from =
            of_.gradient + image * of_.image_step + n * of_.channel_step + (p - image * size_);
        transpose_into_panel(from, of_.channel_step, end - p, count, buffer + (p - p0) * kColumns<T>);
        p = end;
      }
    }
  }

  RightPanel<T> panel(int64_t n) const {
    return {packed_ + (n - first_) / width_ * kRightPanelSize<T>, kColumns<T>};
  }

 private:
  const WeightGradient<T>& of_;
  const int64_t size_;
  int64_t width_ = kColumns<T>;
  int64_t first_ = 0;
  const T* packed_ = nullptr;
};

// Channels (rows) and positions (columns) of contiguous images as the result.
template <class T>
struct OutPlanes {
  T* at(int64_t m, int64_t n) const { return data + n / size * image_step + m * row + n % size; }
  int64_t together(int64_t n) const { return size - n % size; }
  bool find(int64_t m, int64_t n, int64_t vectors, T** vector) const {
    int64_t image = n / size;
    int64_t position = n - image * size;
    for (int64_t v = 0; v < vectors; ++v, position += kLanes<T>) {
      for (; position >= size; position -= size) ++image;
      if (position + kLanes < T >> size) return false;
      vector[v] = data + image * image_step + m * row + position;
    }
    return true;
  }

  T* data;
  int64_t image_step;
  int64_t row;
  int64_t size;
};

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

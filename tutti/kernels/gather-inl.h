// Images as operands of blocks-inl.h, for convolutions. Included once per target, after
// hwy/foreach_target.h.
#if defined(TUTTI_KERNELS_GATHER_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TUTTI_KERNELS_GATHER_INL_H
#undef TUTTI_KERNELS_GATHER_INL_H
#else
#define TUTTI_KERNELS_GATHER_INL_H
#endif

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "tutti/kernels/blocks-inl.h"
#include "tutti/kernels/convolutions.h"
#include "tutti/kernels/matrices-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

// Vectors can be stored in part without writing, not even the same values, to the rest of their place.
inline constexpr bool kStoresParts = !HWY_MEM_OPS_MIGHT_FAULT && kLanes<float> > 1;

// Columns that follow each other in one line of one image.
struct Piece {
  int64_t image;
  int64_t position;  // of the first one
  int64_t column;    // of the first one
  int64_t count;
};

// Appends the pieces of columns `first` to `last` of all images to `pieces`, which is cleared before. Columns
// in gaps are left out.
template <class T>
void pieces_of(const Gather<T>& from, const Columns& columns, int64_t first, int64_t last,
               std::vector<Piece>& pieces) {
  pieces.clear();
  int64_t image = first / columns.count;
  auto run = std::upper_bound(columns.runs.begin(), columns.runs.end(), first % columns.count,
                              [](int64_t column, const Columns::Run& each) { return column < each.column; });
  if (run != columns.runs.begin()) --run;
  for (; image * columns.count < last; ++image, run = columns.runs.begin()) {
    for (; run != columns.runs.end(); ++run) {
      const int64_t begin = image * columns.count + run->column;
      if (begin >= last) return;
      const int64_t skipped = std::max<int64_t>(0, first - begin);
      const int64_t count = std::min(from.line, last - begin) - skipped;
      if (count > 0) pieces.push_back({image, run->position + skipped, begin + skipped, count});
    }
  }
}

// Dense columns of the matrix of terms as the right operand, in packed panels.
template <class T>
class RightDense {
 public:
  RightDense(const Gather<T>& of, const Columns& columns) : of_(of), columns_(columns) {}

  void pack(int64_t p0, int64_t length, const Block<T>& block, T* buffer) {
    last_ = block.n1;
    width_ = block.width;
    terms_ = of_.terms.subspan(static_cast<size_t>(p0), static_cast<size_t>(length));
    buffer_ = buffer;
    most_ = length > 0 ? *std::max_element(terms_.begin(), terms_.end()) : 0;
  }

  RightPacked<T> panel(int64_t n) {
    pieces_of(of_, columns_, n, std::min(last_, n + width_), pieces_);
    if (!copies_vectors(n)) copy_elements(n);
    return {buffer_};
  }

 private:
  static constexpr size_t kMostParts = 4;

  const T* place(const Piece& piece) const {
    return of_.data + piece.image * of_.image_step + of_.positions[static_cast<size_t>(piece.position)];
  }

  void copy_elements(int64_t n) const {
    for (const Piece& piece : pieces_) {
      const T* const from = place(piece);
      T* to = buffer_ + (piece.column - n);
      for (const int64_t term : terms_) {
        for (int64_t i = 0; i < piece.count; ++i) to[i] = from[term + i * of_.step];
        to += kColumns<T>;
      }
    }
  }

  // Returns false if vectors cannot be used.
  bool copies_vectors(int64_t n) {
    if (kLanes<T> == 1 || of_.step > 2) return false;
    const int64_t end = pieces_.back().column + pieces_.back().count;
    const T* const last = place(pieces_.back()) + most_;
    if (of_.end - last < (pieces_.back().count + kLanes<T>)*of_.step) return false;
    auto piece = pieces_.begin();
    for (int64_t at = n; at < end; at += kLanes<T>) {
      while (piece->column + piece->count <= at) ++piece;
      Parts parts;
      for (auto each = piece; each != pieces_.end() && each->column < at + kLanes<T>; ++each) {
        if (parts.count == kMostParts) return false;
        const T* const from = place(*each) + (at - each->column) * of_.step;
        if (from < of_.data) return false;
        parts.from[parts.count] = from;
        parts.begin[parts.count++] = static_cast<size_t>(std::max<int64_t>(0, each->column - at));
      }
      if (of_.step == 1)
        copy_vector<1>(parts, buffer_ + (at - n));
      else
        copy_vector<2>(parts, buffer_ + (at - n));
    }
    return true;
  }

  // A vector is put together from parts. Its lanes from begin[i] on are loaded from the memory at from[i].
  struct Parts {
    const T* from[kMostParts];
    size_t begin[kMostParts];
    size_t count = 0;
  };

  // Copies one vector of each row.
  template <int kStep>
  void copy_vector(const Parts& parts, T* to) const {
    if (parts.count == 1)
      copy_parts<kStep, 1>(parts, to);
    else if (parts.count == 2)
      copy_parts<kStep, 2>(parts, to);
    else if (parts.count == 3)
      copy_parts<kStep, 3>(parts, to);
    else
      copy_parts<kStep, 4>(parts, to);
  }

  template <int kStep, size_t kParts>
  void copy_parts(const Parts& parts, T* to) const {
    const Tag<T> d;
    const T* from[kParts];
    hn::Mask<Tag<T>> before[kParts];
    TUTTI_UNROLL for (size_t i = 0; i < kParts; ++i) {
      from[i] = parts.from[i];
      before[i] = hn::FirstN(d, parts.begin[i]);
    }
    for (const int64_t term : terms_) {
      auto vector = load<kStep>(from[0] + term);
      TUTTI_UNROLL for (size_t i = 1; i < kParts; ++i) vector =
          hn::IfThenElse(before[i], vector, load<kStep>(from[i] + term));
      hn::Store(vector, d, to);
      to += kColumns<T>;
    }
  }

  template <int kStep>
  HWY_INLINE static Vector<T> load(const T* from) {
    const Tag<T> d;
    const auto vector = hn::LoadU(d, from);
#if HWY_TARGET != HWY_SCALAR
    if constexpr (kStep == 2) return hn::ConcatEven(d, hn::LoadU(d, from + kLanes<T>), vector);
#endif
    return vector;
  }

  const Gather<T>& of_;
  const Columns& columns_;
  std::vector<Piece> pieces_;
  int64_t last_ = 0;
  int64_t width_ = kColumns<T>;
  std::span<const int64_t> terms_;
  int64_t most_ = 0;  // the largest of the terms
  T* buffer_ = nullptr;
};

// Spread columns of the matrix of terms as the right operand, which are read where they are.
template <class T>
class RightSpread {
 public:
  RightSpread(const Gather<T>& of, const Columns& columns) : of_(of), columns_(columns) {}

  void pack(int64_t p0, int64_t length, const Block<T>& block, T* /*buffer*/) {
    constexpr int64_t kTogether = 64 / sizeof(T);
    offsets_.assign(of_.terms.begin() + p0, of_.terms.begin() + p0 + length);
    offsets_.push_back(0);
    first_ = block.n0;
    vectors_.clear();
    for (int64_t n = block.n0; n < block.n1; n += kLanes<T>) {
      const int64_t image = n / columns_.count;
      const int64_t column = n - image * columns_.count;
      vectors_.push_back(of_.data + image * of_.image_step + column % kTogether +
                         columns_.starts[static_cast<size_t>(column / kTogether)]);
    }
    vectors_.resize(vectors_.size() + kVectors, of_.data);  // panel() reads whole panels
  }

  RightVectors<T> panel(int64_t n) const {
    RightVectors<T> panel;
    for (int64_t v = 0; v < kVectors; ++v)
      panel.vectors[v] = vectors_[static_cast<size_t>((n - first_) / kLanes<T> + v)];
    panel.offsets = offsets_.data();
    return panel;
  }

 private:
  const Gather<T>& of_;
  const Columns& columns_;
  std::vector<const T*> vectors_;
  std::vector<int64_t> offsets_;
  int64_t first_ = 0;
};

// A left operand of one row of ones.
template <class T>
class LeftOnes {
 public:
  void pack(int64_t /*p0*/, int64_t /*length*/, const Block<T>& /*block*/, T* /*buffer*/) {}
  LeftRows<T> panel(int64_t /*m*/) const {
    LeftRows<T> panel;
    std::fill_n(panel.rows, kRows, &one_);
    panel.offsets = offsets_.data();
    return panel;
  }

 private:
  const T one_ = 1;
  const std::vector<int64_t> offsets_ = std::vector<int64_t>(kChain + 1, 0);
};

// Positions (rows) and channels (columns) of contiguous images as the right operand.
template <class T>
class RightPlanes {
 public:
  explicit RightPlanes(const WeightGradient<T>& of) : of_(of), size_(of.from.size()) {}

  void pack(int64_t p0, int64_t length, const Block<T>& block, T* buffer) {
    begin_ = p0;
    end_ = p0 + length;
    last_ = block.n1;
    width_ = block.width;
    buffer_ = buffer;
  }

  RightPacked<T> panel(int64_t n) const {
    for (int64_t p = begin_; p < end_;) {
      const int64_t image = p / size_;
      const int64_t end = std::min(end_, (image + 1) * size_);
      const T* const from =
          of_.gradient + image * of_.image_step + n * of_.channel_step + (p - image * size_);
      transpose(from, of_.channel_step, end - p, std::min(width_, last_ - n),
                buffer_ + (p - begin_) * kColumns<T>, kColumns<T>);
      p = end;
    }
    return {buffer_};
  }

 private:
  const WeightGradient<T>& of_;
  const int64_t size_;
  int64_t begin_ = 0;
  int64_t end_ = 0;
  int64_t last_ = 0;
  int64_t width_ = kColumns<T>;
  T* buffer_ = nullptr;
};

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

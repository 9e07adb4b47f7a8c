// Operands of which not every row has all terms, for convolutions: what lies outside of the images is left
// out. Included once per target, after hwy/foreach_target.h.
#if defined(TUTTI_KERNELS_LISTED_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TUTTI_KERNELS_LISTED_INL_H
#undef TUTTI_KERNELS_LISTED_INL_H
#else
#define TUTTI_KERNELS_LISTED_INL_H
#endif

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tutti/kernels/blocks-inl.h"
#include "tutti/kernels/convolutions.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

// At most kRows rows of a block that have the same terms. They are not always neighbours in the result.
struct RowGroup {
  int64_t first;  // of the left operand's list of rows
  int64_t count;
  int64_t kind;  // of terms
};

// Cuts `count` rows of one kind into groups of about equal size.
inline void append_groups(int64_t first, int64_t count, int64_t kind, std::vector<RowGroup>& groups) {
  const int64_t parts = (count + kRows - 1) / kRows;
  for (int64_t i = 0; i < parts; ++i) {
    const int64_t begin = count * i / parts;
    groups.push_back({first + begin, count * (i + 1) / parts - begin, kind});
  }
}

// The terms of one chain that a group has.
struct ListedTerms {
  const int64_t* offsets;  // of the left operand
  const int64_t* rows;     // of the right operand's panel
  int64_t count;
};

// Computes a block of a product with k terms, of which the rows leave some out. Needs of the operands,
// besides what sum_block() needs:
//   left.begin(block)    prepares the rows of the block
//   left.groups()        those that are computed together
//   left.row(i)          row i of the list, as a row of the result
//   left.terms(kind)     the terms of a group, after pack()
//   left.panel(group)    its rows, a LeftRows
template <class T, class Left, class Right>
void sum_listed(const Block<T>& block, int64_t k, Left& left, Right& right, const OutMatrix<T>& out) {
  left.begin(block);
  T* const left_buffer =
      scratch<T>(Buffer::Left, static_cast<int64_t>(left.groups().size()) * kLeftPanelSize<T>);
  T* const right_buffer = right_panels(block);
  for (int64_t p0 = 0; p0 == 0 || p0 < k; p0 += kChain) {
    const int64_t length = std::min(kChain, k - p0);
    left.pack(p0, length, block, left_buffer);
    right.pack(p0, length, block, right_buffer);
    for (int64_t n = block.n0; n < block.n1; n += block.width) {
      const T* const panel = right.panel(n).data;
      const int64_t wide = std::min(block.width, block.n1 - n);
      for (const RowGroup& group : left.groups()) {
        const ListedTerms terms = left.terms(group.kind);
        Tile<T> tile{};
        for (int64_t r = 0; r < group.count; ++r) tile.rows[r] = out.at(left.row(group.first + r), n);
        add_chains_to_rows(group.count, wide, terms.count, left.panel(group),
                           RightListed<T>{panel, terms.rows}, tile, p0 == 0);
      }
    }
  }
}

// Positions as rows, with the terms inside of the image.
template <class T>
class LeftPositions {
 public:
  explicit LeftPositions(const Correlation<T>& of) : of_(of), by_kind_(of.kinds.size()) {}

  // Positions of one kind come together.
  void begin(const Block<T>& block) {
    for (std::vector<Row>& rows : by_kind_) rows.clear();
    const int64_t size = of_.from.size();
    for (int64_t m = block.m0; m < block.m1;) {
      const T* const image = of_.from.data + m / size * of_.from.image_step;
      for (auto p = static_cast<size_t>(m % size); p < of_.kind_of.size() && m < block.m1; ++p, ++m)
        by_kind_[static_cast<size_t>(of_.kind_of[p])].push_back({m, image + of_.from.positions[p]});
    }
    rows_.clear();
    groups_.clear();
    for (size_t kind = 0; kind < by_kind_.size(); ++kind) {
      append_groups(static_cast<int64_t>(rows_.size()), static_cast<int64_t>(by_kind_[kind].size()),
                    static_cast<int64_t>(kind), groups_);
      rows_.insert(rows_.end(), by_kind_[kind].begin(), by_kind_[kind].end());
    }
  }
  const std::vector<RowGroup>& groups() const { return groups_; }
  int64_t row(int64_t i) const { return rows_[static_cast<size_t>(i)].of_result; }

  void pack(int64_t p0, int64_t /*length*/, const Block<T>& /*block*/, T* /*buffer*/) {
    chain_ = static_cast<size_t>(p0 / kChain);
  }
  ListedTerms terms(int64_t kind) const {
    const KindOfPosition& of = of_.kinds[static_cast<size_t>(kind)];
    const int64_t first = of.chains[chain_];
    return {of.offsets.data() + first, of.rows.data() + first, of.chains[chain_ + 1] - first};
  }
  LeftRows<T> panel(const RowGroup& group) const {
    LeftRows<T> panel;
    for (int64_t r = 0; r < group.count; ++r)
      panel.rows[r] = rows_[static_cast<size_t>(group.first + r)].place;
    panel.offsets = terms(group.kind).offsets;
    return panel;
  }

 private:
  struct Row {
    int64_t of_result;
    const T* place;  // of the position in its image
  };

  const Correlation<T>& of_;
  std::vector<std::vector<Row>> by_kind_;
  std::vector<Row> rows_;
  std::vector<RowGroup> groups_;
  size_t chain_ = 0;
};

// The terms of a convolution as rows, for sums over positions. A row has those positions at which its tap
// lies inside of the image, or all of them if the images have zeros around them.
template <class T>
class LeftTerms {
 public:
  explicit LeftTerms(const WeightGradient<T>& of)
      : of_(of), channels_(of.inside.empty() ? of.from.terms_count() : of.input_channels) {}

  void begin(const Block<T>& block) {
    first_ = block.m0;
    groups_.clear();
    for (int64_t m = block.m0; m < block.m1;) {
      const int64_t tap = m / channels_;
      const int64_t end = std::min(block.m1, (tap + 1) * channels_);
      append_groups(m - first_, end - m, tap, groups_);
      m = end;
    }
  }
  const std::vector<RowGroup>& groups() const { return groups_; }
  int64_t row(int64_t i) const { return first_ + i; }

  void pack(int64_t p0, int64_t length, const Block<T>& block, T* buffer) {
    places_.clear();
    for (int64_t p = p0; p < p0 + length; ++p)
      places_.push_back(p / of_.from.size() * of_.from.image_step +
                        of_.from.positions[static_cast<size_t>(p % of_.from.size())]);
    // The positions of a channel are far from each other if the channels lie together.
    packed_ = of_.channels_last && block.n1 - block.n0 > 4 * kColumns<T> ? buffer : nullptr;
    if (packed_ != nullptr) copy_panels(length, buffer);
    const int64_t first_tap = block.m0 / channels_;
    const int64_t taps = (block.m1 - 1) / channels_ + 1 - first_tap;
    lists_.resize(static_cast<size_t>(taps));
    first_tap_ = first_tap;
    for (int64_t t = 0; t < taps; ++t) list(first_tap + t, p0, length, lists_[static_cast<size_t>(t)]);
  }
  ListedTerms terms(int64_t tap) const {
    const List& of = lists_[static_cast<size_t>(tap - first_tap_)];
    return {of.offsets.data(), of.rows.data(), static_cast<int64_t>(of.rows.size()) - 1};
  }
  LeftRows<T> panel(const RowGroup& group) const {
    LeftRows<T> panel;
    for (int64_t r = 0; r < group.count; ++r)
      panel.rows[r] = packed_ != nullptr
                          ? packed_ + (&group - groups_.data()) * kLeftPanelSize<T> + r
                          : of_.from.data + of_.from.terms[static_cast<size_t>(row(group.first + r))];
    panel.offsets = terms(group.kind).offsets;
    return panel;
  }

 private:
  // Each list has one element more than there are terms.
  struct List {
    std::vector<int64_t> offsets;
    std::vector<int64_t> rows;
  };

  void copy_panels(int64_t length, T* buffer) const {
    for (const RowGroup& group : groups_) {
      const int64_t* const terms = of_.from.terms.data() + row(group.first);
      const bool together = terms[group.count - 1] - terms[0] == group.count - 1;
      for (int64_t p = 0; p < length; ++p) {
        const T* const from = of_.from.data + places_[static_cast<size_t>(p)];
        T* const to = buffer + p * kRows;
        if (together && group.count == kRows)
          std::copy_n(from + terms[0], kRows, to);
        else
          for (int64_t r = 0; r < group.count; ++r) to[r] = from[terms[r]];
      }
      buffer += kLeftPanelSize<T>;
    }
  }

  void list(int64_t tap, int64_t p0, int64_t length, List& to) const {
    to.offsets.clear();
    to.rows.clear();
    const uint8_t* const inside = of_.inside.empty() ? nullptr : of_.inside.data() + tap * of_.from.size();
    for (int64_t p = 0; p < length; ++p) {
      if (inside != nullptr && inside[(p0 + p) % of_.from.size()] == 0) continue;
      to.offsets.push_back(packed_ != nullptr ? p * kRows : places_[static_cast<size_t>(p)]);
      to.rows.push_back(p);
    }
    to.offsets.push_back(0);
    to.rows.push_back(0);
  }

  const WeightGradient<T>& of_;
  const int64_t channels_;  // whose terms are of one tap
  int64_t first_ = 0;
  std::vector<RowGroup> groups_;
  std::vector<int64_t> places_;
  std::vector<List> lists_;
  int64_t first_tap_ = 0;
  const T* packed_ = nullptr;
};

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

#include "tutti/embedding/row_sums.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "tutti/base/check.h"

namespace tutti::embedding {
namespace {

constexpr int kDigitBits = 11;
constexpr size_t kDigits = size_t{1} << kDigitBits;

struct Lookup {
  uint64_t key;
  int32_t index;
};

// Sorts by key and keeps the order of equal keys.
void sort_by_key(std::vector<Lookup>& lookups, int bits) {
  std::vector<Lookup> other(lookups.size());
  for (int shift = 0; shift < bits; shift += kDigitBits) {
    std::array<uint32_t, kDigits> places{};
    for (const Lookup& lookup : lookups) ++places[(lookup.key >> shift) % kDigits];
    uint32_t place = 0;
    for (uint32_t& count : places) place += std::exchange(count, place);
    for (const Lookup& lookup : lookups) other[places[(lookup.key >> shift) % kDigits]++] = lookup;
    lookups.swap(other);
  }
}

void add_to(float* sum, const float* more, int64_t dim) {
  for (int64_t i = 0; i < dim; ++i) sum[i] += more[i];
}

// Adds up the sums of one row after the other, at the end of a RowSums. The sums of the current row wait for
// their siblings there, as in TreeSum: lanes come in order, and a lane or a subtree without the row is
// omitted. Joins nodes as far as the lanes of the range alone decide it.
class Tree {
 public:
  Tree(RowSums& to, const LaneRange& range, int64_t lanes) : to_(to), range_(range), lanes_(lanes) {}

  // Appends a node of the row, whose values are copied. Nodes between the last one and this one have no data.
  void push(int64_t row, comm::TreeNode place, const float* values) {
    join_before(comm::first_leaf(place));
    to_.sums.push_back({row, place, 0});
    to_.values.insert(to_.values.end(), values, values + to_.dim);
  }
  // Adds more values to the last node.
  void add(const float* values) { add_to(last_values(), values, to_.dim); }

  // Ends a row with so many lookups.
  void finish(int64_t lookups) {
    join_before(range_.end);
    if (to_.sums.size() > begin_) to_.sums[begin_].lookups = lookups;
    begin_ = to_.sums.size();
  }

 private:
  float* last_values() { return to_.values.data() + static_cast<int64_t>(to_.values.size()) - to_.dim; }

  void join_before(int64_t end) {
    comm::join_complete(to_.sums, begin_, range_.begin, end, lanes_, [this](RowSum&, const RowSum&) {
      float* const values = last_values();
      add_to(values - to_.dim, values, to_.dim);
      to_.values.resize(to_.values.size() - static_cast<size_t>(to_.dim));
    });
  }

  RowSums& to_;
  const LaneRange range_;
  const int64_t lanes_;
  size_t begin_ = 0;  // the first sum of the current row
};

// Divides the values of the last sum.
void divide_last(RowSums& sums, float divisor) {
  const std::span<float> last = sums.values_of(sums.sums.size() - 1);
  for (float& value : last) value /= divisor;
}

int bits_of(uint64_t number) {
  int bits = 0;
  for (; number > 0; number >>= 1) ++bits;
  return bits;
}

}  // namespace

RowIndex index_rows(std::span<const uint64_t> keys, int bits) {
  RowIndex index;
  index.row_of.assign(keys.size(), RowIndex::kNone);
  std::vector<Lookup> lookups;
  lookups.reserve(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i] != kNoKey) lookups.push_back({keys[i], static_cast<int32_t>(i)});
  }
  sort_by_key(lookups, bits);
  index.order.resize(lookups.size());
  for (size_t i = 0; i < lookups.size(); ++i) {
    if (i == 0 || lookups[i].key != lookups[i - 1].key) {
      index.keys.push_back(lookups[i].key);
      index.begin.push_back(static_cast<int32_t>(i));
    }
    index.order[i] = lookups[i].index;
    index.row_of[static_cast<size_t>(lookups[i].index)] = static_cast<int32_t>(index.keys.size()) - 1;
  }
  index.begin.push_back(static_cast<int32_t>(lookups.size()));
  return index;
}

namespace {

// Visits the lookups of each row that have a gradient.
class LookupsOfRows {
 public:
  LookupsOfRows(const RowIndex& index, std::span<const float* const> gradients, int64_t dim)
      : index_(index), gradients_(gradients), dim_(dim) {}

  template <class Visit>
  int64_t of_row(int64_t row, const Visit& visit) const {
    const auto at = static_cast<size_t>(row);
    int64_t visited = 0;
    for (auto i = static_cast<size_t>(index_.begin[at]); i < static_cast<size_t>(index_.begin[at + 1]); ++i) {
      constexpr size_t kAhead = 8;  // gradients are far apart, so each is fetched before it is needed
      if (i + kAhead < index_.order.size())
        fetch_for_reading(gradients_[static_cast<size_t>(index_.order[i + kAhead])], dim_);
      const float* gradient = gradients_[static_cast<size_t>(index_.order[i])];
      if (gradient == nullptr) continue;
      visit(index_.order[i], gradient);
      ++visited;
    }
    return visited;
  }

 private:
  const RowIndex& index_;
  const std::span<const float* const> gradients_;
  const int64_t dim_;
};

}  // namespace

RowSums sum_lanes(const RowIndex& index, int64_t dim, std::span<const float* const> gradients,
                  std::span<const int64_t> ends, const LaneRange& range, int64_t lanes) {
  TUTTI_CHECK(static_cast<int64_t>(ends.size()) == range.size(), "{} lanes of {}", ends.size(), range.size());
  RowSums result{.dim = dim};
  result.sums.reserve(index.keys.size());
  result.values.reserve(index.keys.size() * static_cast<size_t>(dim));
  const LookupsOfRows lookups(index, gradients, dim);
  Tree tree(result, range, lanes);
  for (int64_t row = 0; row < index.rows(); ++row) {
    size_t lane = ~size_t{0};  // none yet
    const int64_t count = lookups.of_row(row, [&](int32_t lookup, const float* gradient) {
      size_t now = lane == ~size_t{0} ? 0 : lane;
      while (lookup >= ends[now]) ++now;
      if (now == lane)
        tree.add(gradient);
      else
        tree.push(row, {0, range.begin + static_cast<int64_t>(now)}, gradient);
      lane = now;
    });
    tree.finish(count);
  }
  return result;
}

RowSums sum_workers(std::span<const RowSumsView> workers, int64_t dim, int64_t lanes, double divisor) {
  struct SumOfWorker {
    size_t worker;
    size_t sum;
  };
  std::vector<Lookup> lookups;
  std::vector<SumOfWorker> sums_of_workers;
  uint64_t greatest = 0;
  for (size_t worker = 0; worker < workers.size(); ++worker) {
    for (size_t sum = 0; sum < workers[worker].sums.size(); ++sum) {
      const auto row = static_cast<uint64_t>(workers[worker].sums[sum].row);
      greatest = std::max(greatest, row);
      lookups.push_back({row, static_cast<int32_t>(sums_of_workers.size())});
      sums_of_workers.push_back({worker, sum});
    }
  }
  sort_by_key(lookups, bits_of(greatest));
  RowSums result{.dim = dim};
  result.sums.reserve(lookups.size());
  result.values.reserve(lookups.size() * static_cast<size_t>(dim));
  Tree tree(result, {0, lanes}, lanes);
  int64_t of_row = 0;
  for (size_t i = 0; i < lookups.size(); ++i) {
    const SumOfWorker& one = sums_of_workers[static_cast<size_t>(lookups[i].index)];
    const RowSumsView& of = workers[one.worker];
    tree.push(static_cast<int64_t>(lookups[i].key), of.sums[one.sum].place,
              of.values.data() + one.sum * static_cast<size_t>(dim));
    of_row += of.sums[one.sum].lookups;
    if (i + 1 < lookups.size() && lookups[i + 1].key == lookups[i].key) continue;
    tree.finish(std::exchange(of_row, 0));
    if (divisor != 0) divide_last(result, static_cast<float>(divisor));
  }
  return result;
}

}  // namespace tutti::embedding

#include "tutti/data/tables/id_index.h"

#include <algorithm>
#include <array>

namespace tutti::data {

void IdIndex::add(std::string_view id) {
  const XxhBits128 hash = xxh128(id);
  entries_.push_back({hash, rows_++});
  const std::array<XxhBits128, 2> both = {order_, hash};
  order_ = xxh128({reinterpret_cast<const char*>(both.data()), sizeof both});
}

std::optional<IdIndex::Twice> IdIndex::finish() {
  entries_.shrink_to_fit();
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    return a.hash != b.hash ? a.hash < b.hash : a.row < b.row;
  });
  const auto twice = std::adjacent_find(entries_.begin(), entries_.end(),
                                        [](const Entry& a, const Entry& b) { return a.hash == b.hash; });
  if (twice == entries_.end()) return std::nullopt;
  return Twice{twice->row, std::next(twice)->row};
}

std::vector<int64_t> IdIndex::finish_without_doubles() {
  static_cast<void>(finish());
  std::vector<int64_t> doubles;
  size_t kept = 0;
  for (const Entry& entry : entries_) {
    if (kept > 0 && entries_[kept - 1].hash == entry.hash) {
      doubles.push_back(entry.row);
    } else {
      entries_[kept++] = entry;
    }
  }
  entries_.resize(kept);
  std::sort(doubles.begin(), doubles.end());
  return doubles;
}

IdIndex::Joined IdIndex::join(const IdIndex& other) const {
  Joined joined;
  joined.rows.resize(entries_.size());
  auto here = entries_.begin();
  auto there = other.entries_.begin();
  while (here != entries_.end() && there != other.entries_.end() && here->hash == there->hash)
    joined.rows[static_cast<size_t>(here++->row)] = there++->row;
  const bool is_here = here != entries_.end() && (there == other.entries_.end() || here->hash < there->hash);
  if (is_here) joined.alone_here = here->row;
  if (!is_here && there != other.entries_.end()) joined.alone_there = there->row;
  return joined;
}

std::vector<int64_t> IdIndex::join_some(const IdIndex& other) const {
  std::vector<int64_t> rows(static_cast<size_t>(rows_), -1);
  auto there = other.entries_.begin();
  for (const Entry& entry : entries_) {
    while (there != other.entries_.end() && there->hash < entry.hash) ++there;
    if (there != other.entries_.end() && there->hash == entry.hash)
      rows[static_cast<size_t>(entry.row)] = there->row;
  }
  return rows;
}

// Merges all indices, which are sorted by hash, in one pass.
std::optional<std::pair<IdIndex::IndexRow, IdIndex::IndexRow>> find_shared(
    const std::vector<const IdIndex*>& indices) {
  using Cursor = std::pair<std::vector<IdIndex::Entry>::const_iterator, size_t>;
  const auto is_behind = [](const Cursor& a, const Cursor& b) { return a.first->hash > b.first->hash; };
  std::vector<Cursor> heap;
  for (size_t i = 0; i < indices.size(); ++i) {
    if (!indices[i]->entries_.empty()) heap.emplace_back(indices[i]->entries_.begin(), i);
  }
  std::make_heap(heap.begin(), heap.end(), is_behind);
  std::optional<Cursor> last;
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), is_behind);
    Cursor& least = heap.back();
    if (last && last->first->hash == least.first->hash)
      return std::pair(IdIndex::IndexRow{least.second, least.first->row},
                       IdIndex::IndexRow{last->second, last->first->row});
    last = least;
    if (++least.first == indices[least.second]->entries_.end()) {
      heap.pop_back();
    } else {
      std::push_heap(heap.begin(), heap.end(), is_behind);
    }
  }
  return std::nullopt;
}

}  // namespace tutti::data

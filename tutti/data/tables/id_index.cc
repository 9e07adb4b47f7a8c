#include "tutti/data/tables/id_index.h"

#include <algorithm>
#include <cstring>

namespace tutti::data {
namespace {

uint64_t mixed(uint64_t value) {
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
  value = (value ^ value >> 27) * 0x94d049bb133111eb;
  return value ^ value >> 31;
}

uint64_t hash_of(std::string_view id) {
  uint64_t hash = 0x9e3779b97f4a7c15 ^ id.size();
  while (!id.empty()) {
    uint64_t word = 0;
    const size_t size = std::min(id.size(), sizeof word);
    std::memcpy(&word, id.data(), size);
    hash = mixed(hash ^ word) + 0x9e3779b97f4a7c15;
    id.remove_prefix(size);
  }
  return hash;
}

}  // namespace

void IdIndex::add(std::string_view id) {
  const uint64_t hash = hash_of(id);
  entries_.push_back({hash, size_++});
  order_ = mixed(order_ ^ hash) + 1;
}

IdIndex::Twice IdIndex::finish(const IdOf& id_of) {
  const auto before = [](const Entry& a, const Entry& b) {
    return a.hash != b.hash ? a.hash < b.hash : a.row < b.row;
  };
  std::sort(entries_.begin(), entries_.end(), before);
  entries_.shrink_to_fit();
  for (size_t begin = 0; begin < entries_.size();) {
    size_t end = begin + 1;
    while (end < entries_.size() && entries_[end].hash == entries_[begin].hash) ++end;
    for (size_t a = begin; a < end && end - begin > 1; ++a) {
      for (size_t b = a + 1; b < end; ++b) {
        if (id_of(entries_[a].row) == id_of(entries_[b].row)) return {entries_[a].row, entries_[b].row};
      }
    }
    begin = end;
  }
  return {};
}

int64_t IdIndex::find(std::string_view id, const IdOf& id_of) const {
  const uint64_t hash = hash_of(id);
  auto entry = std::lower_bound(entries_.begin(), entries_.end(), hash,
                                [](const Entry& a, uint64_t b) { return a.hash < b; });
  for (; entry != entries_.end() && entry->hash == hash; ++entry) {
    if (id_of(entry->row) == id) return entry->row;
  }
  return -1;
}

}  // namespace tutti::data

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::data {

// Which row has which ID, in 16 bytes a row: IDs themselves stay where they are, and are asked for only where
// two have one hash.
class IdIndex {
 public:
  using IdOf = std::function<std::string(int64_t row)>;

  // Of the next row.
  void add(std::string_view id);
  // After the last: what it takes to find them. Returns two rows with one ID, if there are any.
  struct Twice {
    int64_t first = -1;
    int64_t second = -1;
  };
  Twice finish(const IdOf& id_of);

  int64_t size() const { return size_; }
  // -1 where there is none.
  int64_t find(std::string_view id, const IdOf& id_of) const;
  // The same for the same IDs in the same order.
  uint64_t order() const { return order_; }

 private:
  struct Entry {
    uint64_t hash;
    int64_t row;
  };

  std::vector<Entry> entries_;  // by hash, once finished
  int64_t size_ = 0;
  uint64_t order_ = 0;
};

}  // namespace tutti::data

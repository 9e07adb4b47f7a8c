#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tutti/data/feed.h"

namespace tutti {

// The feeds that a program trains on, numbered from 0 in the order of their first use. The numbers are the
// same on all workers and when the program is run again, since it calls fit() in the same order, so
// checkpoints refer to feeds by number.
//
// Two feeds are the same if they have the same source, size, order and partition; transforms are not
// compared. A source that was destroyed is replaced by the next one with the same size, order and partition,
// because a program may read its data again for each fit. Not thread-safe.
class FeedsSeen {
 public:
  // Returns the number of the feed. `ranges` are those of the feed's lanes.
  size_t number_of(const data::Feed& feed, const std::vector<data::ExampleRange>& ranges);

 private:
  struct Seen {
    std::weak_ptr<const data::Source> source;
    int64_t size;
    data::Order order;
    std::vector<data::ExampleRange> ranges;
  };

  std::vector<Seen> seen_;
};

}  // namespace tutti

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tutti/data/feed.h"

namespace tutti {

// The feeds that a program trains on, numbered from 0 in the order of their first use. The numbers are the
// same on all workers and when the program is run again, since it calls fit() in the same order, so
// checkpoints refer to feeds by number.
//
// Two feeds are the same if they have the same sources, combined in the same way, and the same size, order
// and partition; transforms are not compared. A source that was destroyed is replaced by the next one in a
// feed that is the same otherwise, because a program may read its data again for each fit. Not thread-safe.
class FeedsSeen {
 public:
  // Returns the number of the feed. `ranges` are those of the feed's lanes.
  size_t number_of(const data::Feed& feed, const std::vector<data::ExampleRange>& ranges);

 private:
  struct Seen {
    std::vector<std::weak_ptr<const data::Source>> sources;
    std::string recipe;
    int64_t size;
    data::Order order;
    std::vector<data::ExampleRange> ranges;
  };

  std::vector<Seen> seen_;
};

}  // namespace tutti

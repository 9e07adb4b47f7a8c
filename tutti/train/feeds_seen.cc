#include "tutti/train/feeds_seen.h"

#include <algorithm>

namespace tutti {
namespace {

using Handle = std::weak_ptr<const data::Source>;

bool is_same(const Handle& a, const Handle& b) { return !a.owner_before(b) && !b.owner_before(a); }

}  // namespace

size_t FeedsSeen::number_of(const data::Feed& feed, const std::vector<data::ExampleRange>& ranges) {
  const Handle source = feed.weak_source();
  const auto find = [&](const auto& matches) {
    return std::find_if(seen_.begin(), seen_.end(), [&](const Seen& seen) {
      return seen.size == feed.size() && seen.order == feed.order() && seen.ranges == ranges &&
             matches(seen.source);
    });
  };
  auto found = find([&](const Handle& other) { return is_same(other, source); });
  if (found == seen_.end()) found = find([](const Handle& other) { return other.expired(); });
  if (found == seen_.end()) found = seen_.insert(found, {{}, feed.size(), feed.order(), ranges});
  found->source = source;
  return static_cast<size_t>(found - seen_.begin());
}

}  // namespace tutti

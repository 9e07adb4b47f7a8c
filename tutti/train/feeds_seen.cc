#include "tutti/train/feeds_seen.h"

#include <algorithm>

namespace tutti {
namespace {

using Handle = std::weak_ptr<const data::Source>;

bool is_same(const Handle& a, const Handle& b) { return !a.owner_before(b) && !b.owner_before(a); }

}  // namespace

size_t FeedsSeen::number_of(const data::Feed& feed, const std::vector<data::ExampleRange>& ranges) {
  const std::vector<Handle> sources = feed.weak_sources();
  const std::string recipe = feed.recipe();
  const auto find = [&](const auto& matches) {
    return std::find_if(seen_.begin(), seen_.end(), [&](const Seen& seen) {
      return seen.size == feed.size() && seen.order == feed.order() && seen.ranges == ranges &&
             seen.recipe == recipe &&
             std::equal(seen.sources.begin(), seen.sources.end(), sources.begin(), sources.end(), matches);
    });
  };
  auto found = find(is_same);
  if (found == seen_.end())
    found = find([](const Handle& seen, const Handle& now) { return seen.expired() || is_same(seen, now); });
  if (found == seen_.end()) found = seen_.insert(found, {{}, recipe, feed.size(), feed.order(), ranges});
  found->sources = sources;
  return static_cast<size_t>(found - seen_.begin());
}

}  // namespace tutti

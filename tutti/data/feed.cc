#include "tutti/data/feed.h"

#include <algorithm>
#include <new>
#include <string>

#include "tutti/base/error.h"

namespace tutti::data {
namespace {

// Returns "example 7" or "50 examples (the first is 7)".
std::string name_examples(std::span<const int64_t> examples) {
  if (examples.size() == 1) return fmt::format("example {}", examples.front());
  return fmt::format("{} examples (the first is {})", examples.size(), examples.front());
}

// Runs `work` and converts its exceptions to an Error that says what was being done.
template <class Work>
Batch as_error(ErrorKind kind, const char* doing, std::span<const int64_t> examples, const Work& work) {
  try {
    return work();
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    fail(ErrorKind::Overloaded, "feed: out of memory while {} {}", doing, name_examples(examples));
  } catch (const std::exception& error) {
    fail(kind, "feed: {} {} failed: {}", doing, name_examples(examples), error.what());
  }
}

void check_rows(const char* who, const Batch& batch, std::span<const int64_t> examples) {
  if (batch.size() == static_cast<int64_t>(examples.size())) return;
  fail(ErrorKind::InvalidArgument, "feed: {} returned {} rows for {}; expected one row for each example", who,
       batch.size(), name_examples(examples));
}

}  // namespace

Feed::Feed(std::shared_ptr<const Source> source) : source_(std::move(source)) {
  if (source_ == nullptr) fail(ErrorKind::InvalidArgument, "feed: the source is a null pointer");
  size_ = source_->size();
}

Feed Feed::shuffle() const {
  Feed feed = *this;
  feed.order_ = Order::Shuffled;
  return feed;
}

Feed Feed::map(Transform transform) const {
  if (!transform) fail(ErrorKind::InvalidArgument, "feed: map() was given an empty function");
  Feed feed = *this;
  feed.transforms_.push_back(std::move(transform));
  return feed;
}

Feed Feed::take(int64_t count) const {
  if (count < 0) fail(ErrorKind::InvalidArgument, "feed: take({}): the count must be 0 or more", count);
  Feed feed = *this;
  feed.size_ = std::min(feed.size_, count);
  return feed;
}

Feed Feed::deal(Deal deal) const {
  Feed feed = *this;
  feed.deal_ = std::move(deal);
  return feed;
}

std::vector<ExampleRange> Feed::ranges(int64_t lanes) const {
  return deal_ ? deal_(lanes, size_) : std::vector<ExampleRange>();
}

TableStatistics Feed::statistics(const std::string& name) const {
  if (transforms_.empty()) return source_->statistics(name);
  return statistics_in_parts(source_->size(), [&](std::span<const int64_t> examples) {
    return statistics_of(read(examples)[name]);
  });
}

Feed Feed::with(const FeedOptions& options) const {
  const int64_t timeout = options.timeout.value_or(std::chrono::milliseconds(0)).count();
  if (options.threads < 1 || options.ahead < 1 || timeout < 0) {
    fail(ErrorKind::InvalidArgument,
         "feed: threads is {}, ahead is {} and timeout is {} ms; threads and ahead must be 1 or more, "
         "timeout 0 or more",
         options.threads, options.ahead, timeout);
  }
  Feed feed = *this;
  feed.options_ = options;
  return feed;
}

Batch Feed::read(std::span<const int64_t> examples) const { return transform(examples, fetch(examples)); }

Batch Feed::fetch(std::span<const int64_t> examples) const {
  if (examples.empty()) return {};
  Batch batch = as_error(ErrorKind::DataLoss, "reading", examples, [&] { return source_->read(examples); });
  check_rows("the source", batch, examples);
  return batch;
}

Batch Feed::transform(std::span<const int64_t> examples, Batch batch) const {
  if (examples.empty()) return batch;
  for (const Transform& transform : transforms_) {
    batch = as_error(ErrorKind::InvalidArgument, "transforming", examples,
                     [&] { return transform(std::move(batch)); });
    check_rows("a transform", batch, examples);
  }
  return batch;
}

}  // namespace tutti::data

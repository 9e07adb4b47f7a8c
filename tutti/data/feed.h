#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tutti/data/batch.h"
#include "tutti/data/sampler.h"
#include "tutti/data/source.h"
#include "tutti/data/statistics.h"

namespace tutti::data {

struct FeedOptions {
  int threads = 1;    // that read and transform ahead of the training loop
  int64_t ahead = 4;  // batches at most that are ready, or being made, before they are asked for
  // That a wait for a batch may take; as --feed-timeout says, where nothing is said here.
  std::optional<std::chrono::milliseconds> timeout = {};
};

// A source and how its examples are to be seen. A value: each of its verbs returns another feed and leaves
// this one as it is; copies share the source. A BatchQueue sets it in motion.
class Feed {
 public:
  using Transform = std::function<Batch(Batch)>;

  explicit Feed(std::shared_ptr<const Source> source);

  // In random order, another one every epoch.
  Feed shuffle() const;

  // Every batch goes through `transform`, after those given before. It runs on the reading threads, on
  // several batches at once where there are several threads, and keeps the number of examples.
  Feed map(Transform transform) const;

  // The first `count` examples of the source, or all where there are fewer.
  Feed take(int64_t count) const;

  // Each lane sees a range of examples of its own, as `deal` says of so many lanes and examples: fewer than
  // the source has after take().
  using Deal = std::function<std::vector<ExampleRange>(int64_t lanes, int64_t examples)>;
  Feed deal(Deal deal) const;

  Feed with(const FeedOptions& options) const;

  // Examples.
  int64_t size() const { return size_; }
  Order order() const { return order_; }
  // Those of each of so many lanes; none where they share all examples.
  std::vector<ExampleRange> ranges(int64_t lanes) const;
  const Source& source() const { return *source_; }
  const FeedOptions& options() const { return options_; }

  // These examples, read and transformed on the calling thread. Thread-safe where the transforms are. What
  // goes wrong in a reader or a transform comes out as an Error.
  Batch read(std::span<const int64_t> examples) const;
  // The two halves of it: as the source has them, and transformed.
  Batch fetch(std::span<const int64_t> examples) const;
  Batch transform(std::span<const int64_t> examples, Batch batch) const;

  // Of all that the source has under that name, as the transforms make it.
  TableStatistics statistics(const std::string& name) const;

 private:
  std::shared_ptr<const Source> source_;
  std::vector<Transform> transforms_;
  Deal deal_;
  FeedOptions options_;
  Order order_ = Order::Sequential;
  int64_t size_ = 0;
};

}  // namespace tutti::data

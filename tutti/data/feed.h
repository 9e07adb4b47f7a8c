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
  int threads = 1;    // number of threads that read and transform ahead of the training loop
  int64_t ahead = 4;  // maximum number of batches that are ready, or being made, in advance
  // The maximum time that a wait for a batch may take; --feed-timeout by default.
  std::optional<std::chrono::milliseconds> timeout = {};
};

// A source together with a way of reading its examples. A value: shuffle(), take() and so on return a new
// feed and do not change this one; copies share the source. A BatchQueue reads the batches.
class Feed {
 public:
  using Transform = std::function<Batch(Batch)>;

  explicit Feed(std::shared_ptr<const Source> source);

  // Reads the examples in random order, with a new order in each epoch.
  Feed shuffle() const;

  // Applies `transform` to every batch, after the transforms given before. It runs on the reading threads, on
  // several batches at once if there are several threads, and must not change the number of examples.
  Feed map(Transform transform) const;

  // Uses only the first `count` examples of the source, or all if there are fewer.
  Feed take(int64_t count) const;

  // Gives each lane a range of examples of its own, which `deal` computes from the number of lanes and the
  // number of examples (those that take() has left).
  using Deal = std::function<std::vector<ExampleRange>(int64_t lanes, int64_t examples)>;
  Feed deal(Deal deal) const;

  Feed with(const FeedOptions& options) const;

  // The number of examples.
  int64_t size() const { return size_; }
  Order order() const { return order_; }
  // The ranges of the lanes; empty if the lanes share all examples.
  std::vector<ExampleRange> ranges(int64_t lanes) const;
  const Source& source() const { return *source_; }
  // For recognising the source without keeping it alive.
  std::weak_ptr<const Source> weak_source() const { return source_; }
  const FeedOptions& options() const { return options_; }

  // Reads and transforms these examples on the calling thread. Thread-safe if the transforms are. An
  // exception in a reader or a transform is thrown as an Error.
  Batch read(std::span<const int64_t> examples) const;
  // The two halves of read(): read from the source, and transform.
  Batch fetch(std::span<const int64_t> examples) const;
  Batch transform(std::span<const int64_t> examples, Batch batch) const;

  // Returns statistics of the tensors of that name over all examples, after the transforms.
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

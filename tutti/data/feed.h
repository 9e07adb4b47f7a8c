#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tutti/data/batch.h"
#include "tutti/data/source.h"
#include "tutti/lanes/sampler.h"

namespace tutti::data {

// How the batches of a feed are read ahead.
struct FeedOptions {
  int threads = 1;    // number of threads that read and transform ahead of the training loop
  int64_t ahead = 4;  // maximum number of batches that are ready, or being made, in advance
  // The maximum time that a wait for a batch may take; --feed-timeout by default.
  std::optional<std::chrono::milliseconds> timeout = {};
};

// Options of Feed::split().
struct SplitOptions {
  // Shuffled: the parts are drawn at random, as `seed` says. Sequential: each part has consecutive examples.
  Order order = Order::Shuffled;
  int64_t seed = 1;  // the parts of Shuffled depend on it
};

// The rows of a batch as the sources have them, before any transform: one batch or, for a combined feed, the
// batches of its parts.
struct Fetched {
  Batch batch = {};
  std::vector<Fetched> parts = {};
};

// A source together with a way of reading its examples, or several feeds combined into one. A value:
// shuffle(), take() and so on return a new feed and do not change this one; copies share the sources. A
// BatchQueue reads the batches.
class Feed {
 public:
  using Transform = std::function<Batch(Batch)>;

  explicit Feed(std::shared_ptr<const Source> source);

  // Reads the examples in random order, with a new order in each epoch.
  Feed shuffle() const;

  // Applies `transform` to every batch, after the transforms given before. It runs on the reading threads, on
  // several batches at once if there are several threads, and must not change the number of examples.
  Feed map(Transform transform) const;

  // Uses only the first `count` examples, or all if there are fewer. These are the first ones before
  // shuffling, whether shuffle() is called before or after.
  Feed take(int64_t count) const;
  // Leaves out the first `count` examples, or all if there are fewer; otherwise as take().
  Feed skip(int64_t count) const;
  // Divides the examples among as many feeds as there are fractions, which have to add up to 1: {0.9, 0.1}.
  // Each example is in exactly one of them, and the same options always give the same parts. The parts are
  // read in the order of this feed: they are shuffled if it is. If each lane has examples of its own (see
  // deal()), any order but the sequential one is an InvalidArgument.
  std::vector<Feed> split(const std::vector<double>& fractions, const SplitOptions& options = {}) const;

  // Gives each lane a separate range of examples, which `deal` computes from the number of lanes and the
  // number of examples of this feed.
  using Deal = std::function<std::vector<ExampleRange>(int64_t lanes, int64_t examples)>;
  Feed deal(Deal deal) const;

  Feed with(const FeedOptions& options) const;

  // The number of examples.
  int64_t size() const { return size_; }
  Order order() const { return order_; }
  // The ranges of the lanes; empty if the lanes share all examples.
  std::vector<ExampleRange> ranges(int64_t lanes) const;
  // The ID of an example, and the file that it is read from, as its source says.
  std::string id(int64_t example) const;
  std::string place_of(int64_t example) const;
  // The examples that the sources have skipped because of errors in them. `why` is the reason that the first
  // such source gives.
  Source::LeftOut left_out() const;
  const FeedOptions& options() const { return options_; }

  // Reads and transforms these examples on the calling thread. Thread-safe if the transforms are. An
  // exception in a reader or a transform is thrown as an Error.
  Batch read(std::span<const int64_t> examples) const;
  // The two halves of read(): read from the sources, and transform.
  Fetched fetch(std::span<const int64_t> examples) const;
  Batch transform(std::span<const int64_t> examples, Fetched fetched) const;

  // Returns statistics of the tensors of that name over the examples of this feed, after the transforms.
  TableStatistics statistics(const std::string& name) const;

  // The feeds that this feed combines; empty for the feed of a source.
  const std::vector<Feed>& parts() const;
  // Describes how the feed takes its examples from its sources: "" for all or the first examples of a single
  // source, else for example "concat(60000, skip 100(2000))". Feeds of the same sources with the same text
  // and size have the same examples, but possibly other transforms.
  std::string recipe() const;
  // The sources, in the order in which the recipe has their sizes. The pointers do not keep the sources
  // alive.
  std::vector<std::weak_ptr<const Source>> weak_sources() const;
  // A readable list of the parts that the examples come from (Source::parts); "" if no source knows them.
  std::string origins() const;

 private:
  friend Feed combine(std::vector<Feed> parts, Arrangement arrangement);

  Feed() = default;
  std::string recipe_as_part() const;
  struct RowsOfPart;
  std::vector<RowsOfPart> by_part(std::span<const int64_t> examples) const;
  Batch joined(std::span<const int64_t> examples, std::vector<Fetched> parts) const;

  // Either a source, or parts with their arrangement. Order, deal and options of the parts are not used.
  std::shared_ptr<const Source> source_;
  std::shared_ptr<const std::vector<Feed>> parts_;
  std::shared_ptr<const Arrangement> arrangement_;
  std::vector<Column> columns_;  // of the parts, if there are several
  std::vector<Transform> transforms_;
  Deal deal_;
  FeedOptions options_;
  Order order_ = Order::Sequential;
  int64_t size_ = 0;
};

// Concatenates several feeds. Each part keeps its transforms, which see only the rows of that part. Either
// all feeds are shuffled, and then the result is shuffled across the parts, or none is. The columns of all
// feeds need the same names, types and shapes, which is checked by reading the first example of each; else
// throws InvalidArgument. Feeds that give each lane separate examples (the partitions Size and Mod) cannot be
// combined: call deal() on the result.
Feed concat(const std::vector<Feed>& feeds);

// When an epoch of mix() ends.
enum class MixEnd {
  // An epoch has every example of every feed at least once: it ends when each feed has been read to its end,
  // and feeds that are small for their weight are read several times.
  AllRead,
  // An epoch has no example twice: it ends when the first feed has been read to its end. It has the same
  // examples each time, so the last ones of the other feeds are never read.
  FirstRead,
};

// Options of mix().
struct MixOptions {
  int64_t seed = 1;              // determines at which positions each feed's examples are
  MixEnd end = MixEnd::AllRead;  // when an epoch ends
};

// Mixes several feeds in proportion to their weights, which may have any positive sum: mix({a, b}, {3, 1})
// has three examples of `a` for each of `b`. They are spread evenly, so that every range of the mixture, such
// as a batch, has about these proportions; shuffle() then draws from the whole mixture at random. In all
// other respects like concat().
Feed mix(const std::vector<Feed>& feeds, const std::vector<double>& weights, const MixOptions& options = {});

// Name and text: {"examples", "60000"}, {"column label", "int64[], 16 examples with checksum 1f2e3d4c"}.
using Fingerprint = std::vector<std::pair<std::string, std::string>>;

// Describes the number of examples of a feed, their order, how it is combined from other feeds, and the
// examples of each of `lanes` lanes. Reads no examples.
Fingerprint order_of(const Feed& feed, int64_t lanes);

// Describes the names, types and shapes of the source's columns, before the feed's transforms, and a checksum
// of a few examples: the first, the last and some between them, taken from lane 0 if each lane has examples
// of its own, and from each part of a combined feed. Feeds that differ only in other examples have equal
// fingerprints. Costs as much as reading 16 examples of each part.
Fingerprint columns_of(const Feed& feed, int64_t lanes);

}  // namespace tutti::data

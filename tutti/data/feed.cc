#include "tutti/data/feed.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/hashes.h"
#include "tutti/base/type_name.h"
#include "tutti/params/random_scope.h"

namespace tutti::data {
namespace {

// Returns "example 7" or "50 examples (the first is 7)".
std::string name_examples(std::span<const int64_t> examples) {
  if (examples.size() == 1) return fmt::format("example {}", examples.front());
  return fmt::format("{} examples (the first is {})", examples.size(), examples.front());
}

// Runs `work` and converts its exceptions to an Error that says what was being done.
template <class Work>
auto as_error(ErrorKind kind, const char* doing, std::span<const int64_t> examples, const Work& work)
    -> decltype(work()) {
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

// Returns the columns of the first example. A transform may draw random numbers, which must not change the
// random numbers of the program.
std::vector<Column> columns_of_first(const Feed& feed) {
  const std::lock_guard lock(generator_mutex());
  const RandomScope own_numbers(torch::kCPU);
  return columns_in(feed.read(std::vector<int64_t>{0}));
}

// Throws unless the feeds can be combined. Returns their columns; empty if no feed has examples.
std::vector<Column> require_alike(const std::vector<Feed>& feeds) {
  std::vector<Column> columns;
  size_t first = 0;
  for (size_t i = 0; i < feeds.size(); ++i) {
    if (feeds[i].order() != feeds[0].order())
      fail(ErrorKind::InvalidArgument,
           "feed: feeds 0 and {} cannot be combined: only one of them is shuffled. Combine them unshuffled, "
           "and call shuffle() on the result",
           i);
    if (!feeds[i].ranges(1).empty())
      fail(ErrorKind::InvalidArgument,
           "feed: feed {} cannot be combined with others: it gives each lane examples of its own. Use the "
           "partition 'all', or call deal() on the combined feed",
           i);
    if (feeds[i].size() == 0) continue;
    const std::vector<Column> own = columns_of_first(feeds[i]);
    if (columns.empty()) {
      columns = own;
      first = i;
    } else if (!are_alike(columns, own)) {
      fail(ErrorKind::InvalidArgument,
           "feed: feeds {} and {} cannot be combined, because their columns differ: {} in feed {}, {} in "
           "feed {}. Change one of them with map()",
           first, i, text_of(columns), first, text_of(own), i);
    }
  }
  return columns;
}

// The most demanding of the options.
FeedOptions options_for_all(const std::vector<Feed>& feeds) {
  FeedOptions all = feeds.front().options();
  for (const Feed& feed : feeds) {
    all.threads = std::max(all.threads, feed.options().threads);
    all.ahead = std::max(all.ahead, feed.options().ahead);
    all.timeout = std::max(all.timeout, feed.options().timeout);
  }
  return all;
}

// The number of examples that an epoch of the mixture has of each feed.
std::vector<int64_t> counts_of(const std::vector<Feed>& feeds, const std::vector<double>& weights,
                               MixEnd end) {
  // Returns for each feed the size of a mixture in which it is read once, in units of the weights.
  std::vector<double> epochs;
  for (size_t i = 0; i < feeds.size(); ++i)
    epochs.push_back(static_cast<double>(feeds[i].size()) / weights[i]);
  const auto [shortest, longest] = std::minmax_element(epochs.begin(), epochs.end());
  const double epoch = end == MixEnd::AllRead ? *longest : *shortest;
  if (epoch * std::accumulate(weights.begin(), weights.end(), 0.0) > 0x1p52)
    fail(ErrorKind::InvalidArgument,
         "mix: with the weights {} an epoch would have more than 2^52 examples: use weights that differ less",
         fmt::join(weights, ", "));
  std::vector<int64_t> counts;
  for (const double weight : weights) counts.push_back(std::llround(epoch * weight));
  return counts;
}

}  // namespace

Feed::Feed(std::shared_ptr<const Source> source) : source_(std::move(source)) {
  if (source_ == nullptr) fail(ErrorKind::InvalidArgument, "feed: the source is a null pointer");
  size_ = source_->size();
}

Feed combine(std::vector<Feed> parts, Arrangement arrangement) {
  Feed feed;
  if (parts.size() == 1) {
    feed.deal_ = parts[0].deal_;
  } else {
    feed.columns_ = require_alike(parts);
  }
  feed.order_ = parts[0].order_;
  feed.options_ = options_for_all(parts);
  feed.size_ = arrangement.size;
  feed.arrangement_ = std::make_shared<const Arrangement>(std::move(arrangement));
  feed.parts_ = std::make_shared<const std::vector<Feed>>(std::move(parts));
  return feed;
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

Feed Feed::skip(int64_t count) const {
  if (count < 0) fail(ErrorKind::InvalidArgument, "feed: skip({}): the count must be 0 or more", count);
  return combine({*this}, skipping(size_, count));
}

std::vector<Feed> Feed::split(const std::vector<double>& fractions, const SplitOptions& options) const {
  constexpr double kRounding = 1e-6;
  const double sum = std::accumulate(fractions.begin(), fractions.end(), 0.0);
  const bool is_positive = std::all_of(fractions.begin(), fractions.end(), [](double f) { return f > 0; });
  if (!is_positive || !(std::abs(sum - 1) <= kRounding))
    fail(ErrorKind::InvalidArgument,
         "feed: split({}): the fractions must be positive and add up to 1, as in split({{0.9, 0.1}}); their "
         "sum is {}",
         fmt::join(fractions, ", "), sum);
  if (options.order == Order::Shuffled && deal_)
    fail(ErrorKind::InvalidArgument,
         "feed: each lane has examples of its own, so that the feed cannot be split at random: use "
         "split(fractions, {{.order = Order::Sequential}}), or the partition 'all'");
  std::vector<Feed> parts;
  double before = 0;
  int64_t begin = 0;
  for (size_t i = 0; i < fractions.size(); ++i) {
    before += fractions[i];
    const int64_t end = i + 1 == fractions.size()
                            ? size_
                            : std::min<int64_t>(size_, std::llround(before * static_cast<double>(size_)));
    parts.push_back(options.order == Order::Shuffled
                        ? combine({*this}, drawn(size_, begin, end, options.seed))
                        : take(end).skip(begin));
    begin = end;
  }
  return parts;
}

Feed concat(const std::vector<Feed>& feeds) {
  if (feeds.empty()) fail(ErrorKind::InvalidArgument, "concat: at least one feed is needed");
  if (feeds.size() == 1) return feeds[0];
  std::vector<int64_t> sizes;
  for (const Feed& feed : feeds) sizes.push_back(feed.size());
  return combine(feeds, one_after_another(sizes));
}

Feed mix(const std::vector<Feed>& feeds, const std::vector<double>& weights, const MixOptions& options) {
  if (feeds.empty() || feeds.size() != weights.size())
    fail(ErrorKind::InvalidArgument,
         "mix: there are {} feeds and {} weights; expected one weight for each feed", feeds.size(),
         weights.size());
  std::vector<int64_t> sizes;
  for (size_t i = 0; i < feeds.size(); ++i) {
    if (!(weights[i] > 0) || !std::isfinite(weights[i]))
      fail(ErrorKind::InvalidArgument, "mix: the weight of feed {} is {}; it must be above 0", i, weights[i]);
    if (feeds[i].size() == 0) fail(ErrorKind::InvalidArgument, "mix: feed {} has no examples", i);
    sizes.push_back(feeds[i].size());
  }
  if (feeds.size() == 1) return feeds[0];
  return combine(feeds, interleaved(std::move(sizes), counts_of(feeds, weights, options.end), options.seed));
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
  if (source_ != nullptr && transforms_.empty() && size_ == source_->size()) return source_->statistics(name);
  return statistics_in_parts(
      size_, [&](std::span<const int64_t> examples) { return statistics_of(read(examples)[name]); });
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

std::string Feed::id(int64_t example) const {
  if (source_ != nullptr) return source_->id(example);
  const PartExample in = arrangement_->at(example);
  return (*parts_)[in.part].id(in.example);
}

std::string Feed::place_of(int64_t example) const {
  if (source_ != nullptr) return source_->place_of(example);
  const PartExample in = arrangement_->at(example);
  return (*parts_)[in.part].place_of(in.example);
}

// A source that several parts share counts once.
Source::LeftOut Feed::left_out() const {
  if (source_ != nullptr) return source_->left_out();
  Source::LeftOut all;
  std::vector<std::shared_ptr<const Source>> counted;
  for (const auto& weak : weak_sources()) {
    std::shared_ptr<const Source> source = weak.lock();
    if (std::find(counted.begin(), counted.end(), source) != counted.end()) continue;
    const Source::LeftOut own = source->left_out();
    all.examples += own.examples;
    if (all.why.empty()) all.why = own.why;
    counted.push_back(std::move(source));
  }
  return all;
}

const std::vector<Feed>& Feed::parts() const {
  static const std::vector<Feed> kNone;
  return parts_ ? *parts_ : kNone;
}

// Returns the recipe with the number of examples, which after take() differs from the number of the source or
// arrangement.
std::string Feed::recipe_as_part() const {
  const std::string own = recipe();
  if (own.empty()) return std::to_string(size_);
  return size_ == arrangement_->size ? own : fmt::format("take {}({})", size_, own);
}

std::string Feed::recipe() const {
  if (source_ != nullptr) return {};
  std::vector<std::string> of;
  for (const Feed& part : *parts_) of.push_back(part.recipe_as_part());
  return fmt::format("{}({})", arrangement_->text, fmt::join(of, ", "));
}

std::vector<std::weak_ptr<const Source>> Feed::weak_sources() const {
  if (source_ != nullptr) return {source_};
  std::vector<std::weak_ptr<const Source>> all;
  for (const Feed& part : *parts_) {
    for (auto& source : part.weak_sources()) all.push_back(std::move(source));
  }
  return all;
}

std::string Feed::origins() const {
  if (source_ != nullptr) return source_->parts();
  std::string all;
  for (const Feed& part : *parts_) {
    const std::string own = part.origins();
    if (!all.empty() && !own.empty()) all += "; ";
    all += own;
  }
  return all;
}

Batch Feed::read(std::span<const int64_t> examples) const { return transform(examples, fetch(examples)); }

// Some rows of a batch that come from one part.
struct Feed::RowsOfPart {
  std::vector<int64_t> examples = {};   // as the part numbers them
  std::vector<int64_t> positions = {};  // of their rows in the batch
};

std::vector<Feed::RowsOfPart> Feed::by_part(std::span<const int64_t> examples) const {
  std::vector<RowsOfPart> parts(parts_->size());
  for (size_t row = 0; row < examples.size(); ++row) {
    check_examples(examples.subspan(row, 1), arrangement_->size, "feed");
    const PartExample in = arrangement_->at(examples[row]);
    parts[in.part].examples.push_back(in.example);
    parts[in.part].positions.push_back(static_cast<int64_t>(row));
  }
  return parts;
}

Fetched Feed::fetch(std::span<const int64_t> examples) const {
  Fetched fetched;
  if (examples.empty()) return fetched;
  if (source_ != nullptr) {
    fetched.batch =
        as_error(ErrorKind::DataLoss, "reading", examples, [&] { return source_->read(examples); });
    check_rows("the source", fetched.batch, examples);
    return fetched;
  }
  const std::vector<RowsOfPart> rows = by_part(examples);
  for (size_t part = 0; part < rows.size(); ++part)
    fetched.parts.push_back((*parts_)[part].fetch(rows[part].examples));
  return fetched;
}

Batch Feed::joined(std::span<const int64_t> examples, std::vector<Fetched> parts) const {
  std::vector<PartRows> rows;
  const std::vector<RowsOfPart> of_parts = by_part(examples);
  for (size_t part = 0; part < of_parts.size(); ++part) {
    Batch batch = (*parts_)[part].transform(of_parts[part].examples, std::move(parts[part]));
    if (of_parts.size() == 1) return batch;
    if (batch.size() > 0) rows.push_back({part, of_parts[part].positions, std::move(batch)});
  }
  return as_error(ErrorKind::InvalidArgument, "joining", examples,
                  [&] { return join_rows(rows, static_cast<int64_t>(examples.size()), columns_); });
}

Batch Feed::transform(std::span<const int64_t> examples, Fetched fetched) const {
  if (examples.empty()) return std::move(fetched.batch);
  Batch batch = source_ != nullptr ? std::move(fetched.batch) : joined(examples, std::move(fetched.parts));
  for (const Transform& transform : transforms_) {
    batch = as_error(ErrorKind::InvalidArgument, "transforming", examples,
                     [&] { return transform(std::move(batch)); });
    check_rows("a transform", batch, examples);
  }
  return batch;
}

namespace {

constexpr int64_t kExamples = 16;

// Returns examples from the first to the last, as far apart as possible.
std::vector<int64_t> spread(const ExampleRange& range) {
  const int64_t count = std::min(range.size(), kExamples);
  const int64_t gaps = std::max<int64_t>(count - 1, 1);
  // Divides before it multiplies, since the product of two large numbers would overflow.
  const int64_t step = (range.size() - 1) / gaps;
  const int64_t rest = (range.size() - 1) % gaps;
  std::vector<int64_t> examples;
  for (int64_t i = 0; i < count; ++i) examples.push_back(range.begin + step * i + rest * i / gaps);
  return examples;
}

std::string checksum_of(const torch::Tensor& tensor) {
  const torch::Tensor bytes = tensor.detach().cpu().contiguous();
  return fmt::format("{:08x}", crc32c({static_cast<const std::byte*>(bytes.data_ptr()), bytes.nbytes()}));
}

// Adds the columns of each source, with a prefix that names the source: "feed 1: ".
void add_columns(const Fetched& fetched, const std::string& path, Fingerprint& lines) {
  for (size_t part = 0; part < fetched.parts.size(); ++part) {
    const std::string name = fetched.parts.size() > 1 ? fmt::format("{}feed {}: ", path, part) : path;
    add_columns(fetched.parts[part], name, lines);
  }
  for (const auto& [name, tensor] : fetched.batch.tensors()) {
    lines.emplace_back(
        path + "column " + name,
        fmt::format("{}[{}], {} examples with checksum {}", type_name(tensor.scalar_type()),
                    fmt::join(tensor.sizes().slice(1), ","), tensor.size(0), checksum_of(tensor)));
  }
}

}  // namespace

Fingerprint order_of(const Feed& feed, int64_t lanes) {
  Fingerprint lines = {{"examples", std::to_string(feed.size())},
                       {"order", feed.order() == Order::Shuffled ? "shuffled" : "as they are"}};
  std::string ranges;
  for (const ExampleRange& range : feed.ranges(lanes))
    ranges += fmt::format("{} {} ", range.begin, range.end);
  lines.emplace_back(
      "examples of each lane",
      ranges.empty() ? "all" : fmt::format("ranges with checksum {:08x}", crc32c(as_bytes(ranges))));
  if (const std::string parts = feed.origins(); !parts.empty()) lines.emplace_back("parts", parts);
  // Added for the feed of a single source too, so that its run is not resumed with a combined feed.
  const std::string recipe = feed.recipe();
  lines.emplace_back("combination", recipe.empty() ? "none" : recipe);
  return lines;
}

Fingerprint columns_of(const Feed& feed, int64_t lanes) {
  Fingerprint lines;
  if (feed.parts().size() > 1) {
    for (size_t part = 0; part < feed.parts().size(); ++part) {
      for (auto& [name, text] : columns_of(feed.parts()[part], lanes))
        lines.emplace_back(fmt::format("feed {}: {}", part, name), std::move(text));
    }
    return lines;
  }
  const std::vector<ExampleRange> ranges = feed.ranges(lanes);
  const std::vector<int64_t> examples =
      spread(ranges.empty() ? ExampleRange{0, feed.size()} : ranges.front());
  if (!examples.empty()) add_columns(feed.fetch(examples), "", lines);
  return lines;
}

}  // namespace tutti::data

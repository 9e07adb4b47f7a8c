#include "tutti/data/batch_queue.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <limits>
#include <stdexcept>

#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/test_errors.h"

namespace tutti::data {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

// Each example is its own number. A closed gate delays the reads of examples from `gated` on; the reads are
// counted.
class GatedSource final : public Source {
 public:
  explicit GatedSource(int64_t size, int64_t gated = std::numeric_limits<int64_t>::max())
      : size_(size), gated_(gated) {}

  int64_t size() const override { return size_; }
  std::string place_of(int64_t example) const override { return "shard" + std::to_string(example / 10); }

  Batch read(std::span<const int64_t> examples) const override {
    EXPECT_FALSE(examples.empty());
    std::unique_lock lock(mutex_);
    ++started_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return *std::max_element(examples.begin(), examples.end()) < gated_; });
    ++ended_;
    changed_.notify_all();
    return Batch(
        {{"x", torch::tensor(std::vector<int64_t>(examples.begin(), examples.end()), torch::kLong)}});
  }

  void open() {
    const std::lock_guard lock(mutex_);
    gated_ = std::numeric_limits<int64_t>::max();
    changed_.notify_all();
  }

  void wait_for_reads(int64_t count) const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return started_ >= count; });
  }

  void wait_for_ends(int64_t count) const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ >= count; });
  }

  int64_t started() const {
    const std::lock_guard lock(mutex_);
    return started_;
  }

 private:
  const int64_t size_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable int64_t started_ = 0;
  mutable int64_t ended_ = 0;
  int64_t gated_;
};

// Fails if it is asked for one particular example.
class FailingSource final : public Source {
 public:
  explicit FailingSource(int64_t bad) : bad_(bad) {}
  int64_t size() const override { return 1000; }
  Batch read(std::span<const int64_t> examples) const override {
    for (const int64_t example : examples) {
      if (example == bad_) fail(ErrorKind::DataLoss, "clicks.tsv: record {} has 3 fields, not 4", example);
    }
    return Batch({{"x", torch::zeros({static_cast<int64_t>(examples.size())})}});
  }

 private:
  const int64_t bad_;
};

std::vector<int64_t> numbers_in(const Batch& batch) {
  if (batch.size() == 0) return {};
  const torch::Tensor x = batch["x"];
  return {x.data_ptr<int64_t>(), x.data_ptr<int64_t>() + x.numel()};
}

void expect_delivers_in_order(const Feed& feed, const Sampler& sampler, const BatchQueueOptions& options) {
  BatchQueue queue(feed, sampler, options);
  std::vector<int64_t> expected;
  for (int64_t step = options.first_step; step < options.end_step; ++step) {
    for (int64_t lane = options.first_lane; lane < options.end_lane; ++lane) {
      sampler.examples(step, lane, expected);
      const auto batch = queue.next();
      ASSERT_TRUE(batch.has_value());
      ASSERT_EQ(numbers_in(*batch), expected) << "step " << step << " lane " << lane;
    }
  }
  EXPECT_FALSE(queue.next().has_value());
  EXPECT_FALSE(queue.next().has_value());
}

TEST(BatchQueue, delivers_in_order_with_any_number_of_threads) {
  const auto source = std::make_shared<GatedSource>(1003);
  for (const int threads : {1, 2, 8}) {
    for (const int64_t ahead : {1, 2, 5, 100}) {
      const Feed feed = Feed(source).with({.threads = threads, .ahead = ahead});
      const Sampler sampler(1003, {.lanes = 4, .batch = 7});
      expect_delivers_in_order(feed, sampler, {.end_step = 2 * sampler.steps_per_epoch(), .end_lane = 4});
      expect_delivers_in_order(feed, sampler,
                               {.first_step = 17, .end_step = 40, .first_lane = 1, .end_lane = 3});
    }
  }
}

TEST(BatchQueue, names_the_examples_of_its_batches) {
  BatchQueue queue(Feed(from_tensors({{"x", torch::arange(10)}})).skip(3),
                   Sampler(7, {.order = Order::Sequential, .batch = 4}), {.end_step = 1});
  const std::optional<Batch> batch = queue.next();
  EXPECT_EQ(batch->describe(2), "example '5'");
  EXPECT_EQ(batch->to(torch::kCPU).describe(0), "example '3'");
  EXPECT_EQ(Batch({{"x", torch::zeros({3})}}).describe(2), "example 2 of the batch");
}

TEST(BatchQueue, gives_an_empty_batch_to_a_lane_without_examples) {
  const Sampler sampler(5, {.order = Order::Sequential, .lanes = 4, .batch = 2});
  BatchQueue queue(Feed(std::make_shared<GatedSource>(5)), sampler, {.end_step = 1, .end_lane = 4});
  std::vector<int64_t> sizes;
  while (const auto batch = queue.next()) sizes.push_back(batch->size());
  EXPECT_EQ(sizes, (std::vector<int64_t>{2, 2, 1, 0}));
}

TEST(BatchQueue, ends_at_once_where_no_step_is_asked_for) {
  const Feed empty(std::make_shared<GatedSource>(0));
  BatchQueue queue(empty, Sampler(0), {.end_step = 0});
  EXPECT_FALSE(queue.next().has_value());
}

TEST(BatchQueue, reads_no_further_ahead_than_it_may) {
  const auto source = std::make_shared<GatedSource>(1000);
  constexpr int64_t kAhead = 3;
  BatchQueue queue(Feed(source).with({.threads = 8, .ahead = kAhead}), Sampler(1000), {.end_step = 1000});
  source->wait_for_reads(kAhead);
  for (int64_t handed_out = 1; handed_out <= 1000; ++handed_out) {
    EXPECT_LE(source->started(), handed_out - 1 + kAhead);
    ASSERT_TRUE(queue.next().has_value());
    source->wait_for_reads(std::min<int64_t>(1000, handed_out + kAhead));
  }
}

TEST(BatchQueue, reads_later_batches_while_an_early_one_is_slow) {
  const auto source = std::make_shared<GatedSource>(8, 0);  // every read is delayed
  const Feed feed = Feed(source).with({.threads = 4, .ahead = 8});
  BatchQueue queue(feed, Sampler(8, {.order = Order::Sequential}), {.end_step = 8});
  source->wait_for_reads(4);
  source->open();
  for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(numbers_in(*queue.next()), std::vector<int64_t>{i});
}

TEST(BatchQueue, says_what_it_waits_for_when_a_batch_is_late_and_goes_on_later) {
  const auto source = std::make_shared<GatedSource>(100, 60);
  const Feed feed = Feed(source).with({.threads = 2, .timeout = milliseconds(20)});
  const Sampler sampler(100, {.order = Order::Sequential, .lanes = 2, .batch = 10});
  BatchQueue queue(feed, sampler, {.end_step = 5, .end_lane = 2});
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(queue.next().has_value());
  for (int i = 0; i < 2; ++i) {
    const auto text = error_of(ErrorKind::Timeout, [&] { queue.next(); });
    EXPECT_THAT(text, HasSubstr("step 3, lane 0"));
    EXPECT_THAT(text, HasSubstr("0.02 s"));
    EXPECT_THAT(text, HasSubstr("10 examples (60, 61, 62, 63, ...), the first of them from shard6"));
  }
  source->open();
  source->wait_for_reads(7);
  std::optional<Batch> batch;
  while (!batch) {
    try {
      batch = queue.next();
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::Timeout);
    }
  }
  EXPECT_EQ(numbers_in(*batch).front(), 60);
}

TEST(BatchQueue, takes_any_timeout) {
  const auto source = std::make_shared<GatedSource>(4);
  BatchQueue longest(Feed(source).with({.timeout = milliseconds::max()}), Sampler(4), {.end_step = 4});
  EXPECT_TRUE(longest.next().has_value());
  const auto closed = std::make_shared<GatedSource>(4, 0);
  BatchQueue none(Feed(closed).with({.timeout = milliseconds(0)}), Sampler(4), {.end_step = 4});
  error_of(ErrorKind::Timeout, [&] { none.next(); });
  closed->open();
}

TEST(BatchQueue, brings_a_readers_error_after_the_batches_before_it) {
  for (const int threads : {1, 4}) {
    const Feed feed = Feed(std::make_shared<FailingSource>(57)).with({.threads = threads, .ahead = 8});
    BatchQueue queue(feed, Sampler(1000, {.order = Order::Sequential, .batch = 10}), {.end_step = 100});
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(queue.next().has_value());
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(error_of(ErrorKind::DataLoss, [&] { queue.next(); }),
                "clicks.tsv: record 57 has 3 fields, not 4");
    }
  }
}

TEST(BatchQueue, brings_what_transforms_throw_whatever_it_is) {
  const Feed feed(std::make_shared<GatedSource>(10));
  BatchQueue standard(feed.map([](Batch) -> Batch { throw std::runtime_error("no such word"); }), Sampler(10),
                      {.end_step = 10});
  EXPECT_THAT(error_of(ErrorKind::InvalidArgument, [&] { standard.next(); }), HasSubstr("no such word"));
  BatchQueue foreign(feed.map([](Batch) -> Batch { throw 42; }), Sampler(10), {.end_step = 10});
  error_of(ErrorKind::Bug, [&] { foreign.next(); });
}

TEST(BatchQueue, runs_transforms_on_its_own_threads_without_gradients) {
  std::atomic<int> elsewhere = 0;
  const auto caller = std::this_thread::get_id();
  const Feed feed = Feed(std::make_shared<GatedSource>(10)).map([&](Batch batch) {
    if (std::this_thread::get_id() != caller && !torch::GradMode::is_enabled()) ++elsewhere;
    return batch;
  });
  BatchQueue queue(feed, Sampler(10), {.end_step = 10});
  while (queue.next()) {
  }
  EXPECT_EQ(elsewhere, 10);
}

TEST(BatchQueue, can_go_away_at_any_time) {
  const auto source = std::make_shared<GatedSource>(1000);
  for (int consumed = 0; consumed < 20; ++consumed) {
    BatchQueue queue(Feed(source).with({.threads = 4, .ahead = 3}), Sampler(1000), {.end_step = 1000});
    for (int i = 0; i < consumed; ++i) queue.next();
  }
}

TEST(BatchQueue, goes_away_once_the_read_under_way_is_done) {
  const auto source = std::make_shared<GatedSource>(1000, 0);
  auto queue = std::make_unique<BatchQueue>(Feed(source), Sampler(1000), BatchQueueOptions{.end_step = 1000});
  source->wait_for_reads(1);
  auto gone = std::async(std::launch::async, [&] { queue.reset(); });
  source->open();
  gone.get();
  EXPECT_LT(source->started(), 1000);
}

TEST(BatchQueue, leaves_a_read_behind_that_hangs) {
  const auto source = std::make_shared<GatedSource>(10, 0);
  Timeline timeline;
  std::atomic<int> transformed = 0;
  {
    const Feed feed = Feed(source).with({.threads = 2, .timeout = milliseconds(1)}).map([&](Batch batch) {
      ++transformed;
      return batch;
    });
    const BatchQueue never_asked(feed, Sampler(10), {.end_step = 10, .timeline = &timeline});
    BatchQueue queue(feed, Sampler(10), {.end_step = 10, .timeline = &timeline});
    error_of(ErrorKind::Timeout, [&] { queue.next(); });
    source->wait_for_reads(4);
  }
  source->open();
  source->wait_for_ends(4);
  EXPECT_EQ(transformed, 0);
}

TEST(BatchQueue, takes_steps_without_end) {
  const auto source = std::make_shared<GatedSource>(10);
  BatchQueue queue(Feed(source), Sampler(10, {.lanes = 2}),
                   {.end_step = std::numeric_limits<int64_t>::max(), .end_lane = 2});
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(queue.next().has_value());
}

TEST(BatchQueue, refuses_what_makes_no_sense) {
  const Feed feed(std::make_shared<GatedSource>(10));
  const Sampler sampler(10, {.lanes = 2});
  const auto refuses = [&](const Sampler& with, const BatchQueueOptions& options) {
    return error_of(ErrorKind::InvalidArgument, [&] { BatchQueue(feed, with, options); });
  };
  refuses(sampler, {.first_step = -1, .end_step = 3});
  refuses(sampler, {.first_step = 4, .end_step = 3});
  refuses(sampler, {.end_step = 3, .first_lane = -1});
  refuses(sampler, {.end_step = 3, .first_lane = 2, .end_lane = 1});
  refuses(sampler, {.end_step = 3, .end_lane = 3});
  EXPECT_THAT(refuses(Sampler(11), {.end_step = 3}), HasSubstr("11 examples, but the feed has only 10"));
  EXPECT_THAT(refuses(Sampler(0), {.end_step = 3}), HasSubstr("no examples"));
}

TEST(BatchQueue, without_lanes_is_at_its_end_at_once) {
  const Feed feed(std::make_shared<GatedSource>(10));
  BatchQueue queue(feed, Sampler(10, {.lanes = 2}), {.end_step = 3, .first_lane = 2, .end_lane = 2});
  EXPECT_FALSE(queue.next());
}

}  // namespace
}  // namespace tutti::data

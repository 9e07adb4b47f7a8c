#include "tutti/ps/sync_step.h"

#include <algorithm>
#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tutti/base/test_errors.h"
#include "tutti/ps/placement.h"
#include "tutti/ps/test_push.h"

namespace tutti::ps {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kElements =
    6 * static_cast<int64_t>(Segment::kMost / sizeof(float)) + 1000;  // seven segments
constexpr size_t kSegments = 7;

// A step, and what its message's parts are offered from.
struct Step {
  Step(int workers, int64_t lanes)
      : shard({{0, 0, kElements, torch::kFloat32}}, tutti::OptimizerOptions(torch::optim::SGDOptions(1.0))),
        buffers({torch::zeros({3}), torch::zeros({1}, torch::kDouble)}),
        counters({torch::zeros({2}, torch::kLong)}),
        sync({shard.sections().begin(), shard.sections().end()}, shard.optimizer(), buffers, counters,
             {.workers = workers, .lanes = lanes}) {
    shard.sections()[0].grads.zero_();
  }

  Shard shard;
  std::vector<torch::Tensor> buffers;
  std::vector<torch::Tensor> counters;
  SyncStep sync;
};

// Offers one worker's message part by part.
class Worker {
 public:
  Worker(Step& step, int rank, rpc::Message message)
      : sync_(step.sync), rank_(rank), message_(std::move(message)), reader_(message_) {}

  void offer_control_word() {
    control_word_ = sync_.read_control_word(reader_);
    sync_.offer_control_word(rank_, 0, control_word_);
  }
  void offer_segment() {
    sync_.offer(rank_, next_, sync_.read_segment(rank_, control_word_, next_, reader_));
    ++next_;
  }
  void offer_segments(size_t end) {
    while (next_ < end) offer_segment();
  }
  void offer_rest() {
    sync_.offer_rest(rank_, sync_.read_rest(rank_, control_word_, message_.head, reader_));
  }

 private:
  SyncStep& sync_;
  const int rank_;
  const rpc::Message message_;
  Reader reader_;
  torch::Tensor control_word_;
  size_t next_ = 0;
};

void expect_equal(const Step& one, const Step& other) {
  EXPECT_TRUE(torch::equal(one.shard.sections()[0].grads, other.shard.sections()[0].grads));
  for (size_t i = 0; i < one.buffers.size(); ++i) EXPECT_TRUE(torch::equal(one.buffers[i], other.buffers[i]));
  EXPECT_TRUE(torch::equal(one.counters[0], other.counters[0]));
}

// Workers of 3 and 8 lanes hold several subtrees each.
class SyncStepOf : public ::testing::TestWithParam<std::pair<int, int64_t>> {};

TEST_P(SyncStepOf, adds_parts_in_any_order_of_workers_to_the_bits_of_whole_messages) {
  const auto [workers, lanes] = GetParam();
  const Contributions contributions(workers, lanes, kElements);
  Step whole(workers, lanes);
  Step parts(workers, lanes);
  std::vector<std::unique_ptr<Worker>> all;
  for (int rank = 0; rank < workers; ++rank) {
    const std::vector<size_t> without = rank == 1 ? std::vector<size_t>{0} : std::vector<size_t>();
    whole.sync.offer(rank, 0, contributions.push(rank, without));
    all.push_back(std::make_unique<Worker>(parts, rank, contributions.push(rank, without)));
    all.back()->offer_control_word();
  }
  std::reverse(all.begin(), all.end());
  EXPECT_EQ(parts.sync.offers(), 0);
  for (size_t segment = 0; segment < kSegments; ++segment) {
    for (const auto& worker : all) {
      EXPECT_TRUE(parts.sync.has_room_for(segment + SyncStep::kAhead - 1));
      EXPECT_FALSE(parts.sync.has_room_for(segment + SyncStep::kAhead));
      worker->offer_segment();
      EXPECT_EQ(parts.sync.add_offered(0), worker == all.back());
    }
  }
  for (const auto& worker : all) worker->offer_rest();
  EXPECT_EQ(parts.sync.offers(), workers);
  const SyncStep::Result result = parts.sync.add_up(0);
  EXPECT_EQ(result.examples, whole.sync.add_up(0).examples);
  expect_equal(parts, whole);
  EXPECT_EQ(parts.sync.offers(), 0);
  EXPECT_TRUE(parts.sync.has_room_for(0));
}

INSTANTIATE_TEST_SUITE_P(WorkersAndLanes, SyncStepOf,
                         ::testing::Values(std::pair(2, 2), std::pair(3, 4), std::pair(3, 8), std::pair(4, 4),
                                           std::pair(2, 7), std::pair(3, 2)));

TEST(SyncStep, tells_who_is_behind) {
  Step step(3, 3);
  const Contributions contributions(3, 3, kElements);
  std::vector<std::unique_ptr<Worker>> all;
  for (int rank = 0; rank < 2; ++rank)
    all.push_back(std::make_unique<Worker>(step, rank, contributions.push(rank)));
  all[0]->offer_control_word();
  all[0]->offer_segments(2);
  all[1]->offer_control_word();
  EXPECT_FALSE(step.sync.awaits(0));
  EXPECT_TRUE(step.sync.awaits(1));
  EXPECT_TRUE(step.sync.awaits(2));
  EXPECT_FALSE(step.sync.add_offered(0));
  EXPECT_FALSE(step.sync.has(0));
}

TEST(SyncStep, a_worker_that_comes_back_in_the_middle_offers_everything_again) {
  const Contributions contributions(2, 4, kElements);
  Step whole(2, 4);
  for (const int rank : {0, 1}) whole.sync.offer(rank, 0, contributions.push(rank));
  whole.sync.add_up(0);
  for (const size_t lost_at : {size_t{0}, size_t{1}, size_t{3}, kSegments}) {
    Step step(2, 4);
    Worker stays(step, 0, contributions.push(0));
    Worker lost(step, 1, contributions.push(1));
    stays.offer_control_word();
    lost.offer_control_word();
    stays.offer_segments(std::min(lost_at + SyncStep::kAhead, kSegments));
    lost.offer_segments(lost_at);
    EXPECT_EQ(step.sync.add_offered(0), lost_at > 0);
    step.sync.withdraw(1);
    EXPECT_FALSE(step.sync.add_offered(0));
    EXPECT_TRUE(step.sync.awaits(1));
    Worker back(step, 1, contributions.push(1));
    back.offer_control_word();
    stays.offer_segments(kSegments);
    back.offer_segments(kSegments);
    step.sync.add_offered(0);
    stays.offer_rest();
    back.offer_rest();
    EXPECT_EQ(step.sync.offers(), 2);
    step.sync.add_up(0);
    expect_equal(step, whole);
  }
}

TEST(SyncStep, a_worker_that_comes_back_with_other_examples_is_refused_once_some_were_added) {
  for (const bool added : {false, true}) {
    Step step(2, 4);
    const Contributions contributions(2, 4, kElements);
    for (const int rank : {0, 1}) {
      Worker worker(step, rank, contributions.push(rank));
      worker.offer_control_word();
      if (added) worker.offer_segments(1);
    }
    EXPECT_EQ(step.sync.add_offered(0), added);
    step.sync.withdraw(1);
    for (const auto& [without, examples] :
         {std::pair(std::vector<size_t>{0}, 2.0), std::pair(std::vector<size_t>(), 3.0)}) {
      Worker other(step, 1, contributions.push(1, without, examples));
      if (added) {
        expect_error(ErrorKind::InvalidArgument, HasSubstr("the gradients of other examples"),
                     [&] { other.offer_control_word(); });
      } else {
        EXPECT_NO_THROW(other.offer_control_word());
      }
    }
    // After all were discarded, the step begins anew.
    step.sync.withdraw_all();
    Worker other(step, 1, contributions.push(1, {}, 3));
    EXPECT_NO_THROW(other.offer_control_word());
  }
}

TEST(SyncStep, a_step_in_which_nobody_has_data_lets_all_go_on) {
  Step step(2, 2);
  const Contributions contributions(2, 2, kElements);
  for (const int rank : {0, 1}) {
    Worker worker(step, rank, contributions.push(rank, {0}));
    worker.offer_control_word();
    worker.offer_segment();
    EXPECT_EQ(step.sync.add_offered(0), rank == 1);
    EXPECT_EQ(step.sync.has_room_for(kSegments - 1), rank == 1);
  }
  EXPECT_FALSE(step.sync.add_up(0).outcome.any_data);
}

TEST(SyncStep, counts_one_that_has_offered_only_a_part_as_one_without_data) {
  const Contributions contributions(2, 2, kElements);
  Step whole(2, 2);
  whole.sync.offer(0, 0, contributions.push(0));
  whole.sync.add_up(0);
  Step step(2, 2);
  step.sync.offer(0, 0, contributions.push(0));
  Worker late(step, 1, contributions.push(1));
  late.offer_control_word();
  late.offer_segments(2);
  EXPECT_EQ(step.sync.add_up(0).examples, 2);
  expect_equal(step, whole);
}

}  // namespace
}  // namespace tutti::ps

#include "tutti/train/strategies/all_reduce.h"

#include <cmath>

#include <gmock/gmock.h>

#include "tutti/base/test_errors.h"
#include "tutti/comm/test_ranks.h"
#include "tutti/lanes/lanes.h"
#include "tutti/metrics/test_metrics.h"
#include "tutti/train/strategies/connected.h"
#include "tutti/train/test_training.h"

namespace tutti::all_reduce_test {
namespace {

using testing::HasSubstr;

data::BatchQueue make_queue(const data::Feed& feed, int64_t lanes, int64_t batch, int64_t steps) {
  const data::Sampler sampler(feed.size(), {.lanes = lanes, .batch = batch});
  return data::BatchQueue(feed, sampler, {.end_step = steps, .end_lane = lanes});
}

Group alone() {
  const std::chrono::seconds timeout(60);
  return std::shared_ptr<comm::Communicator>(
      std::make_shared<comm::Collectives>(std::move(comm::inproc_transports(1, timeout).front()), timeout));
}

Context context_with(int64_t lanes) {
  RunConfig config = test_flags();
  config.training.lanes = lanes;
  return test_context(config);
}

// All-reduce without a Trainer: only its steps.
class Steps {
 public:
  Steps(const std::shared_ptr<TestNet>& net, const OptimizerOptions& optimizer, int64_t lanes,
        const Group& group = alone(), double clip_norm = 0, const ReplicaOptions& options = {})
      : context_(context_with(lanes)),
        strategy_(context_, group, make_trainable(net, test_loss), optimizer, options,
                  {.clip_norm = clip_norm}),
        session_(context_, strategy_.group(),
                 {{"", strategy_.replica().parameters(), strategy_.replica().optimizer()}}) {
    strategy_.start(session_, {});
  }

  StepResult step(int64_t step, const Wishes& wishes, data::BatchQueue& queue, const LaneObserver& observe) {
    return strategy_.step(step, wishes, queue, observe);
  }
  LaneRange lanes() const { return strategy_.facts().lanes; }
  Parameters& parameters() { return strategy_.replica().parameters(); }

 private:
  const Context context_;
  AllReduce strategy_;
  Session session_;
};

data::BatchQueue queue_of_step(const data::Feed& feed, int64_t lanes, int64_t step) {
  const data::Sampler sampler(feed.size(), {.lanes = lanes, .batch = 2});
  return data::BatchQueue(feed, sampler, {.first_step = step, .end_step = step + 1, .end_lane = lanes});
}

void ignore(int64_t, const Batch&, const LossOutput&) {}

// A step as section 3 of the design describes it, written without our classes for lanes and trees.
void reference_step(TestNet& net, const std::vector<Batch>& lanes, int64_t step,
                    torch::optim::Optimizer& optimizer) {
  std::vector<torch::Tensor> state_before;
  for (const auto& buffer : net.buffers()) state_before.push_back(buffer.clone());
  std::vector<std::vector<torch::Tensor>> gradients;
  std::vector<std::vector<torch::Tensor>> buffers;
  double examples = 0;
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    if (lanes[lane].size() == 0) continue;
    auto all = net.buffers();
    for (size_t i = 0; i < all.size(); ++i) all[i].copy_(state_before[i]);
    for (auto& parameter : net.parameters()) parameter.mutable_grad() = torch::Tensor();
    torch::manual_seed(lane_seed(1, step, static_cast<int64_t>(lane)));
    (test_loss(net, lanes[lane]).loss * static_cast<double>(lanes[lane].size())).backward();
    gradients.emplace_back();
    for (const auto& parameter : net.parameters()) gradients.back().push_back(parameter.grad().clone());
    buffers.emplace_back();
    for (const auto& buffer : net.buffers()) buffers.back().push_back(buffer.to(torch::kDouble, false, true));
    examples += static_cast<double>(lanes[lane].size());
  }
  // Adds neighbours, then neighbours of these sums, and so on; an odd one is carried to the next level.
  const auto tree = [](std::vector<std::vector<torch::Tensor>> level) {
    while (level.size() > 1) {
      std::vector<std::vector<torch::Tensor>> above;
      for (size_t i = 0; i < level.size(); i += 2) {
        if (i + 1 < level.size()) {
          for (size_t k = 0; k < level[i].size(); ++k) level[i][k] = level[i][k] + level[i + 1][k];
        }
        above.push_back(level[i]);
      }
      level = above;
    }
    return level.front();
  };
  const size_t with_data = gradients.size();
  const auto gradient = tree(gradients);
  const torch::NoGradGuard no_grad;
  auto parameters = net.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i].mutable_grad() = gradient[i] / examples;
  const auto buffer_sums = tree(buffers);
  auto all = net.buffers();
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].is_floating_point()) all[i].copy_(buffer_sums[i] / static_cast<double>(with_data));
  }
  optimizer.step();
}

TEST(AllReduce, makes_the_step_that_the_design_describes) {
  constexpr int64_t kSteps = 6;
  for (const int64_t lanes : {2, 3, 5, 8}) {
    const data::Feed feed = test_feed(90).shuffle();
    auto expected = test_net();
    torch::optim::Adam plain(expected->parameters(), torch::optim::AdamOptions(1e-2));
    Steps single(test_net(), torch::optim::AdamOptions(1e-2), lanes);
    data::BatchQueue queue = make_queue(feed, lanes, 3, kSteps);
    data::BatchQueue same = make_queue(feed, lanes, 3, kSteps);
    for (int64_t step = 0; step < kSteps; ++step) {
      single.step(step, {}, queue, ignore);
      std::vector<Batch> batches;
      for (int64_t lane = 0; lane < lanes; ++lane) batches.push_back(*same.next());
      reference_step(*expected, batches, step, plain);
      for (const auto& view : single.parameters().trained()) {
        ASSERT_TRUE(view.tensor.equal(expected->named_parameters()[view.name]))
            << view.name << ", " << lanes << " lanes";
      }
      for (const auto& view : single.parameters().buffers()) {
        ASSERT_TRUE(view.tensor.equal(expected->named_buffers()[view.name]))
            << view.name << ", " << lanes << " lanes";
      }
    }
  }
}

TEST(AllReduce, one_lane_is_an_ordinary_training_loop) {
  const data::Feed feed = test_feed(90).shuffle();
  auto expected = test_net();
  torch::optim::SGD plain(expected->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  Steps single(test_net(), torch::optim::SGDOptions(0.1).momentum(0.9), 1);
  data::BatchQueue queue = make_queue(feed, 1, 4, 30);
  data::BatchQueue same = make_queue(feed, 1, 4, 30);
  for (int64_t step = 0; step < 30; ++step) {
    const StepResult result = single.step(step, {}, queue, ignore);
    const Batch batch = *same.next();
    torch::manual_seed(lane_seed(1, step, 0));
    plain.zero_grad();
    const torch::Tensor loss = test_loss(*expected, batch).loss;
    loss.backward();
    plain.step();
    EXPECT_EQ(result.examples, batch.size());
    EXPECT_NEAR(result.loss(), loss.item<double>(), 1e-6);
  }
  for (const auto& view : single.parameters().trained()) {
    EXPECT_TRUE(view.tensor.equal(expected->named_parameters()[view.name])) << view.name;
  }
}

// 5 examples in lanes of 2: the third lane has one example, the fourth none.
TEST(AllReduce, lanes_without_examples_count_for_nothing) {
  const data::Feed feed = test_feed(5);
  Steps single(test_net(), torch::optim::AdamOptions(1e-2), 4);
  data::BatchQueue queue = make_queue(feed, 4, 2, 1);
  std::vector<int64_t> seen;
  const StepResult result = single.step(
      0, {}, queue,
      [&](int64_t lane, const Batch& batch, const LossOutput&) { seen.push_back(lane * 10 + batch.size()); });
  EXPECT_EQ(result.examples, 5);
  EXPECT_EQ(seen, (std::vector<int64_t>{2, 12, 21}));
  EXPECT_TRUE(std::isfinite(result.loss()));
}

TEST(AllReduce, a_step_that_fails_in_an_observer_leaves_the_parameters_alone) {
  for (const int64_t lanes : {1, 2}) {
    Steps single(test_net(), torch::optim::AdamOptions(1e-2), lanes);
    const std::string before = single.parameters().sha256();
    const data::Feed feed = test_feed(50);
    data::BatchQueue queue = make_queue(feed, lanes, 2, 3);
    EXPECT_THROW(
        single.step(0, {}, queue,
                    [](int64_t, const Batch&, const LossOutput&) { throw std::runtime_error("no"); }),
        std::runtime_error);
    EXPECT_EQ(single.parameters().sha256(), before);
  }
}

// The buffers that a failed lane has changed are restored to their values before the step.
TEST(AllReduce, a_worker_that_was_started_later_does_not_train_alone_in_a_group_that_cannot_change) {
  Identity identity;
  identity.members_board = "127.0.0.1:1";
  const Context context(test_flags(), identity);
  Group group = alone();
  group.chief = -1;
  expect_error(ErrorKind::PeerLost, HasSubstr("cannot join them: the program trains with a group"), [&] {
    AllReduce(context, group, make_trainable(test_net(), test_loss), torch::optim::SGDOptions(0.1), {}, {});
  });
}

TEST(AllReduce, a_step_that_failed_is_made_again_with_the_same_bits) {
  constexpr int64_t kLanes = 3;
  constexpr int64_t kSteps = 4;
  std::vector<std::string> hashes;
  for (const int64_t failing : {-1, 0, 1, 2}) {
    Steps single(test_net(), torch::optim::AdamOptions(1e-2), kLanes);
    const data::Feed feed = test_feed(50);
    for (int64_t step = 0; step < kSteps; ++step) {
      if (step == 2) {
        data::BatchQueue queue = queue_of_step(feed, kLanes, step);
        const auto fails = [&](int64_t lane, const Batch&, const LossOutput&) {
          if (lane == failing) throw std::runtime_error("no");
        };
        if (failing >= 0) {
          EXPECT_THROW(single.step(step, {}, queue, fails), std::runtime_error);
        }
      }
      data::BatchQueue queue = queue_of_step(feed, kLanes, step);
      single.step(step, {}, queue, ignore);
    }
    hashes.push_back(single.parameters().sha256());
    for (const auto& view : single.parameters().buffers())
      hashes.back() += std::to_string(view.tensor.to(torch::kDouble).sum().item<double>());
    EXPECT_EQ(hashes.back(), hashes[0]) << "at lane " << failing;
  }
}

// Makes ten steps of eight lanes on the ranks of `backend`, and returns the hash of each rank's result. Some
// lanes have no data.
std::vector<std::string> hashes_after_steps(const std::string& backend, int world, int64_t examples,
                                            double clip_norm = 0) {
  constexpr int64_t kLanes = 8;
  constexpr int64_t kSteps = 10;
  const data::Feed feed = test_feed(examples).shuffle();
  std::vector<std::shared_ptr<TestNet>> nets;
  for (int rank = 0; rank < world; ++rank) nets.push_back(test_net());
  std::vector<std::string> hashes(static_cast<size_t>(world));
  comm::testing::with_ranks(backend, world, [&](comm::Communicator& comm) {
    const auto me = static_cast<size_t>(comm.rank());
    Steps strategy(nets[me], torch::optim::AdamOptions(1e-2), kLanes, comm::testing::borrowed(comm),
                   clip_norm);
    const data::Sampler sampler(feed.size(), {.lanes = kLanes, .batch = 3});
    data::BatchQueue queue(
        feed, sampler,
        {.end_step = kSteps, .first_lane = strategy.lanes().begin, .end_lane = strategy.lanes().end});
    for (int64_t step = 0; step < kSteps; ++step) {
      const StepResult result =
          strategy.step(step, {.signal = comm.rank() == 0 ? static_cast<int>(step) : 0}, queue, ignore);
      EXPECT_EQ(result.wishes.signal, step);
    }
    hashes[me] = strategy.parameters().sha256();
    for (const auto& view : strategy.parameters().buffers())
      hashes[me] += view.name + std::to_string(view.tensor.to(torch::kDouble).sum().item<double>());
  });
  return hashes;
}

class AllReduceOver : public ::testing::TestWithParam<std::string> {};

// An epoch of 100 examples has 4 steps of 24 and one of 4; with 7 examples every step is short.
TEST_P(AllReduceOver, gives_the_same_bits_at_every_world) {
  for (const int64_t examples : {100, 7}) {
    const std::string expected = hashes_after_steps("inproc", 1, examples)[0];
    for (const int world : {2, 3, 4, 8, 9}) {
      for (const std::string& hash : hashes_after_steps(GetParam(), world, examples))
        EXPECT_EQ(hash, expected) << world << " ranks, " << examples << " examples";
    }
  }
}

// Rank 0 has no examples, and the others have different numbers of distinct scores.
TEST_P(AllReduceOver, gives_all_ranks_the_same_metrics_in_one_exchange) {
  const metrics::TestExamples examples = metrics::drawn_examples(5, 600);
  std::vector<std::optional<double>> expected;
  for (const auto& metric : metrics::all_metrics("")) {
    examples.update(*metric);
    expected.push_back(metric->value());
  }
  for (const int world : {2, 3, 4}) {
    comm::testing::with_ranks(GetParam(), world, [&](comm::Communicator& comm) {
      const metrics::List own = metrics::all_metrics("");
      if (comm.rank() > 0) {
        const auto end = comm.rank() == world - 1 ? 600 : 100 * comm.rank();
        const auto part = examples.at(torch::arange(100 * (comm.rank() - 1), end));
        for (const auto& metric : own) part.update(*metric);
      }
      merge(comm, own);
      for (size_t i = 0; i < own.size(); ++i)
        EXPECT_EQ(own[i]->value(), expected[i]) << own[i]->name() << " of " << world;
      merge(comm, metrics::List{});
    });
  }
}

TEST_P(AllReduceOver, clips_the_gradient_of_all_workers_alike) {
  const std::string unclipped = hashes_after_steps("inproc", 1, 100)[0];
  const std::string expected = hashes_after_steps("inproc", 1, 100, 0.5)[0];
  EXPECT_NE(expected, unclipped);
  for (const int world : {2, 3}) {
    for (const std::string& hash : hashes_after_steps(GetParam(), world, 100, 0.5)) EXPECT_EQ(hash, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, AllReduceOver, ::testing::Values("inproc", "plain", "shm"),
                         [](const auto& info) { return info.param; });

// Notes whether a backward pass has begun, in which gradients are sent.
struct NotedBackward final : LaneSum {
  double weight(int64_t) const override { return 1; }
  void begin_lane() override {}
  void begin_backward(const torch::Tensor&, int64_t) override { has_begun = true; }
  void add() override {}
  void skip() override {}
  bool is_sending() const override { return false; }
  bool has_begun = false;
};

TEST(Replica, a_loss_that_is_no_mean_is_an_error_that_shows_its_shape) {
  Replica replica(
      make_trainable(test_net(), [](TestNet& net, const Batch& b) { return net.forward(b["image"]); }),
      torch::optim::AdamOptions(1e-2), {});
  const Batch batch = test_feed(4).read(std::vector<int64_t>{0, 1});
  try {
    NotedBackward sum;
    replica.run_lane(0, 0, batch, sum, [](int64_t, const Batch&, const LossOutput&) {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("float32[2,4]"), std::string::npos) << error.what();
  }
}

TEST(Replica, a_loss_that_is_no_number_is_found_before_anything_is_sent) {
  Replica replica(make_trainable(test_net(), test_loss), torch::optim::AdamOptions(1e-2),
                  {.nan_guard = true});
  Batch::Tensors tensors = test_feed(4).read(std::vector<int64_t>{0, 1}).tensors();
  const auto run = [&] {
    NotedBackward sum;
    try {
      replica.run_lane(7, 2, Batch(tensors), sum, [](int64_t, const Batch&, const LossOutput&) {});
    } catch (const Error& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr("step 7, lane 2; the first tensor that is not finite is 'image' of the batch"));
    }
    return sum.has_begun;
  };
  EXPECT_TRUE(run());
  for (auto& [name, tensor] : tensors) {
    if (name == "image") tensor[1][0][2][2] = std::nanf("");
  }
  EXPECT_FALSE(run());
}

TEST(Replica, predicts_in_evaluation_mode_and_goes_back_to_training) {
  auto net = test_net();
  Replica replica(make_trainable(net, test_loss), torch::optim::AdamOptions(1e-2), {});
  const Batch batch = test_feed(8).read(std::vector<int64_t>{0, 1, 2});
  const torch::Tensor first = replica.predict(batch);
  EXPECT_TRUE(first.equal(replica.predict(batch)));
  EXPECT_TRUE(net->is_training());
  EXPECT_FALSE(first.requires_grad());
}

TEST(Replica, images_lie_as_the_layout_says) {
  ReplicaOptions options;
  options.layout = Layout::ChannelsLast;
  Replica replica(make_trainable(test_net(), test_loss), torch::optim::AdamOptions(1e-2), options);
  const Batch batch(
      Batch::Tensors{{"image", torch::rand({2, 3, 4, 4})}, {"label", torch::zeros({2}, torch::kInt64)}});
  EXPECT_TRUE(replica.prepare(batch)["image"].is_contiguous(torch::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(replica.prepare(batch)["image"].equal(batch["image"]));
}

TEST(Replica, learns_in_bfloat16_with_weights_in_float32) {
  ReplicaOptions options;
  options.precision = Precision::BFloat16;
  Steps single(test_net(), torch::optim::AdamOptions(1e-2), 1, alone(), 0, options);
  data::BatchQueue queue = make_queue(test_feed(100).shuffle(), 1, 20, 100);
  double first = 0;
  double last = 0;
  for (int64_t step = 0; step < 100; ++step) {
    last = single.step(step, {}, queue, ignore).loss();
    if (step == 0) first = last;
  }
  EXPECT_LT(last, first / 2);
  EXPECT_EQ(single.parameters().values().scalar_type(), torch::kFloat32);
}

}  // namespace
}  // namespace tutti::all_reduce_test

#include "tutti/params/distributed_optimizer.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/base/error.h"
#include "tutti/comm/test_ranks.h"

namespace tutti {
namespace {

using comm::testing::errors_of_ranks;
using comm::testing::with_ranks;

struct Net : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return second(torch::relu(norm(first(x)))); }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(5, 7));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(7));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(7, 3));
};

std::shared_ptr<Net> make_net(uint64_t seed) {
  torch::manual_seed(seed);
  return std::make_shared<Net>();
}

// What lane `lane` sees at a step.
struct LaneBatch {
  torch::Tensor x;
  torch::Tensor y;
};

std::vector<std::vector<LaneBatch>> make_batches(int64_t steps, int64_t lanes) {
  torch::manual_seed(5);
  std::vector<std::vector<LaneBatch>> batches(static_cast<size_t>(steps));
  for (auto& step : batches) {
    for (int64_t lane = 0; lane < lanes; ++lane)
      step.push_back({torch::randn({4 + lane, 5}), torch::randn({4 + lane, 3})});
  }
  return batches;
}

torch::Tensor loss_of(Net& net, const LaneBatch& batch) {
  return torch::mse_loss(net.forward(batch.x), batch.y);
}

Context context_of(int64_t lanes = 0) {
  Flags flags;
  flags.device = "cpu";
  flags.threads = 1;
  flags.lanes = lanes;
  return Context(flags, Identity{});
}

// The communicator belongs to the test.
std::shared_ptr<comm::Communicator> borrowed(comm::Communicator& comm) {
  return {&comm, [](comm::Communicator*) {}};
}

class DistributedOptimizerOver : public ::testing::TestWithParam<std::string> {};

TEST_P(DistributedOptimizerOver, makes_the_update_that_one_process_makes_with_the_mean_gradient) {
  constexpr int kWorld = 3;
  constexpr int64_t kSteps = 5;
  const auto batches = make_batches(kSteps, kWorld);
  const auto expected = make_net(1);
  torch::optim::SGD plain(expected->parameters(), torch::optim::SGDOptions(0.1));
  for (const auto& lanes : batches) {
    plain.zero_grad();
    int64_t examples = 0;
    torch::Tensor sum = torch::zeros({});
    for (const LaneBatch& batch : lanes) {
      sum = sum + loss_of(*expected, batch) * static_cast<double>(batch.x.size(0));
      examples += batch.x.size(0);
    }
    (sum / static_cast<double>(examples)).backward();
    plain.step();
  }
  // All but rank 1 start from other weights.
  std::vector<std::shared_ptr<Net>> nets = {make_net(7), make_net(1), make_net(8)};
  with_ranks(GetParam(), kWorld, [&](comm::Communicator& comm) {
    const Context context = context_of();
    Net& net = *nets[static_cast<size_t>(comm.rank())];
    Parameters params(net);
    DistributedOptimizer opt(context, params, torch::optim::SGDOptions(0.1),
                             {.communicator = borrowed(comm)});
    opt.broadcast_from(1);
    for (const auto& lanes : batches) {
      const LaneBatch& batch = lanes[static_cast<size_t>(comm.rank())];
      opt.zero_grad();
      loss_of(net, batch).backward();
      EXPECT_EQ(opt.step(batch.x.size(0)), 4 + 5 + 6);
    }
    for (const auto& view : params.trained())
      EXPECT_TRUE(torch::allclose(view.tensor, expected->named_parameters()[view.name], 1e-4, 1e-5))
          << view.name;
  });
}

TEST_P(DistributedOptimizerOver, gives_the_same_bits_at_every_world_where_the_lanes_are_fixed) {
  constexpr int64_t kLanes = 4;
  const auto batches = make_batches(6, kLanes);
  std::string expected;
  for (const int world : {1, 2, 3, 4}) {
    std::vector<std::shared_ptr<Net>> nets;
    for (int rank = 0; rank < world; ++rank) nets.push_back(make_net(1));
    std::vector<std::string> hashes(static_cast<size_t>(world));
    with_ranks(GetParam(), world, [&](comm::Communicator& comm) {
      const Context context = context_of(kLanes);
      Net& net = *nets[static_cast<size_t>(comm.rank())];
      Parameters params(net);
      DistributedOptimizer opt(context, params, torch::optim::AdamOptions(0.01),
                               {.clip_norm = 0.5, .communicator = borrowed(comm)});
      for (const auto& lanes : batches) {
        for (int64_t lane = opt.lanes().begin; lane < opt.lanes().end; ++lane) {
          opt.zero_grad();
          loss_of(net, lanes[static_cast<size_t>(lane)]).backward();
          opt.add_lane(lanes[static_cast<size_t>(lane)].x.size(0));
        }
        opt.step();
      }
      hashes[static_cast<size_t>(comm.rank())] = params.sha256();
    });
    if (expected.empty()) expected = hashes[0];
    for (const std::string& hash : hashes) EXPECT_EQ(hash, expected) << world << " workers";
  }
}

TEST_P(DistributedOptimizerOver, a_worker_without_data_counts_for_nothing) {
  std::vector<std::shared_ptr<Net>> nets = {make_net(1), make_net(1)};
  const auto batches = make_batches(1, 1);
  with_ranks(GetParam(), 2, [&](comm::Communicator& comm) {
    const Context context = context_of();
    Net& net = *nets[static_cast<size_t>(comm.rank())];
    Parameters params(net);
    DistributedOptimizer opt(context, params, torch::optim::SGDOptions(0.1),
                             {.communicator = borrowed(comm)});
    opt.zero_grad();
    if (comm.rank() == 1) loss_of(net, batches[0][0]).backward();
    EXPECT_EQ(opt.step(comm.rank() == 1 ? 4 : 0), 4);
    const std::string before = params.sha256();
    opt.zero_grad();
    EXPECT_EQ(opt.step(0), 0);
    EXPECT_EQ(params.sha256(), before);
  });
  EXPECT_TRUE(torch::equal(nets[0]->first->weight, nets[1]->first->weight));
  EXPECT_TRUE(torch::equal(nets[0]->norm->running_mean, nets[1]->norm->running_mean));
  EXPECT_EQ(nets[0]->norm->num_batches_tracked.item<int64_t>(), 1);
}

TEST_P(DistributedOptimizerOver, names_the_first_difference_between_two_models) {
  const auto errors = errors_of_ranks(GetParam(), 3, std::chrono::seconds(60), [](comm::Communicator& comm) {
    const Context context = context_of();
    torch::nn::Sequential net(torch::nn::Linear(3, 2), torch::nn::Linear(2, comm.rank() == 2 ? 4 : 5));
    Parameters params(*net);
    DistributedOptimizer(context, params, torch::optim::SGDOptions(0.1), {.communicator = borrowed(comm)});
  });
  for (const std::string& error : errors) EXPECT_FALSE(error.empty());
}

TEST(DistributedOptimizer, says_which_lanes_are_missing) {
  const Context context = context_of(2);
  const auto net = make_net(1);
  Parameters params(*net);
  DistributedOptimizer opt(context, params, torch::optim::SGDOptions(0.1));
  opt.zero_grad();
  opt.add_lane();
  EXPECT_THROW(opt.step(), Error);
  opt.add_lane();
  EXPECT_THROW(opt.add_lane(), Error);
}

INSTANTIATE_TEST_SUITE_P(Backends, DistributedOptimizerOver, ::testing::Values("inproc", "plain", "shm"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tutti

#include "tutti/train/distributed_optimizer.h"

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/comm/test_ranks.h"
#include "tutti/nn/sync_batch_norm.h"
#include "tutti/step/test_lanes.h"

namespace tutti::distributed_optimizer_test {
namespace {

using comm::testing::with_ranks;

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
                             {.group = comm::testing::borrowed(comm)});
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

// The first worker has no data at all, the second enough for one step, the third for three.
TEST_P(DistributedOptimizerOver, ends_with_the_shortest_worker_or_goes_on_with_those_that_have_data) {
  constexpr int kWorld = 3;
  const auto batches = make_batches(3, kWorld);
  const std::vector<size_t> own_steps = {0, 1, 3};
  const auto expected = make_net(1);
  torch::optim::SGD plain(expected->parameters(), torch::optim::SGDOptions(0.1));
  for (size_t step = 0; step < batches.size(); ++step) {
    plain.zero_grad();
    torch::Tensor sum = torch::zeros({});
    int64_t examples = 0;
    for (size_t rank = 0; rank < kWorld; ++rank) {
      if (step >= own_steps[rank]) continue;
      const LaneBatch& batch = batches[step][rank];
      sum = sum + loss_of(*expected, batch) * static_cast<double>(batch.x.size(0));
      examples += batch.x.size(0);
    }
    (sum / static_cast<double>(examples)).backward();
    plain.step();
  }
  for (const bool drop_remainder : {true, false}) {
    const std::vector<std::shared_ptr<Net>> nets = {make_net(1), make_net(1), make_net(1)};
    with_ranks(GetParam(), kWorld, [&](comm::Communicator& comm) {
      const auto rank = static_cast<size_t>(comm.rank());
      const Context context = context_of(0, drop_remainder);
      Parameters params(*nets[rank]);
      DistributedOptimizer opt(context, params, torch::optim::SGDOptions(0.1),
                               {.group = comm::testing::borrowed(comm)});
      size_t step = 0;
      for (; opt.goes_on(step < own_steps[rank]); ++step) {
        opt.zero_grad();
        const LaneBatch& batch = batches[step][rank];
        const bool has_data = step < own_steps[rank];
        if (has_data) loss_of(*nets[rank], batch).backward();
        opt.step(has_data ? batch.x.size(0) : 0);
      }
      EXPECT_EQ(step, drop_remainder ? 0 : 3);
      if (drop_remainder) return;
      for (const auto& view : params.trained())
        EXPECT_TRUE(torch::allclose(view.tensor, expected->named_parameters()[view.name], 1e-4, 1e-5))
            << view.name;
    });
  }
}

TEST_P(DistributedOptimizerOver, adds_up_the_backward_passes_between_two_steps) {
  constexpr int kWorld = 2;
  const auto passes = make_batches(6, kWorld);  // two a step
  const auto expected = make_net(1);
  torch::optim::SGD plain(expected->parameters(), torch::optim::SGDOptions(0.1));
  for (size_t pass = 0; pass < passes.size(); pass += 2) {
    plain.zero_grad();
    for (size_t each = pass; each < pass + 2; ++each) {
      for (const LaneBatch& batch : passes[each]) (loss_of(*expected, batch) / (2.0 * kWorld)).backward();
    }
    plain.step();
  }
  const std::vector<std::shared_ptr<Net>> nets = {make_net(1), make_net(1)};
  with_ranks(GetParam(), kWorld, [&](comm::Communicator& comm) {
    const auto rank = static_cast<size_t>(comm.rank());
    const Context context = context_of();
    Parameters params(*nets[rank]);
    DistributedOptimizer opt(context, params, torch::optim::SGDOptions(0.1),
                             {.group = comm::testing::borrowed(comm)});
    for (size_t pass = 0; pass < passes.size(); pass += 2) {
      opt.zero_grad();
      for (size_t each = pass; each < pass + 2; ++each)
        (loss_of(*nets[rank], passes[each][rank]) / 2.0).backward();
      opt.step();
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
                               {.clip_norm = 0.5, .group = comm::testing::borrowed(comm)});
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
                             {.group = comm::testing::borrowed(comm)});
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

TEST_P(DistributedOptimizerOver, one_lane_has_the_same_bits_with_workers_that_have_none) {
  const auto batches = make_batches(4, 4);
  std::string expected;
  for (const int world : {1, 2, 3}) {
    std::vector<std::shared_ptr<Net>> nets;
    for (int rank = 0; rank < world; ++rank) nets.push_back(make_net(1));
    with_ranks(GetParam(), world, [&](comm::Communicator& comm) {
      const Context context = context_of(1);
      Net& net = *nets[static_cast<size_t>(comm.rank())];
      Parameters params(net);
      DistributedOptimizer opt(context, params, torch::optim::AdamOptions(0.01),
                               {.group = comm::testing::borrowed(comm)});
      for (const auto& lanes : batches) {
        const LaneBatch& batch = lanes[3];  // of 7 examples
        if (opt.lanes().size() > 0) {
          opt.zero_grad();
          opt.backward(loss_of(net, batch), batch.x.size(0));
        }
        EXPECT_EQ(opt.step(), 7);
      }
    });
    for (const auto& net : nets) {
      const std::string hash = Parameters(*net).sha256();
      if (expected.empty()) expected = hash;
      EXPECT_EQ(hash, expected) << world << " workers";
      EXPECT_TRUE(torch::equal(net->norm->running_var, nets[0]->norm->running_var));
    }
  }
}

struct WithDropout : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return second(dropout(norm(first(x)))); }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(5, 7));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(7));
  torch::nn::Dropout dropout = register_module("dropout", torch::nn::Dropout(0.5));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(7, 3));
};

// LibTorch has one generator for all threads, so the ranks take turns from zero_grad() to backward().
TEST_P(DistributedOptimizerOver, dropout_depends_on_lane_and_step_and_not_on_the_number_of_workers) {
  constexpr int64_t kDropoutLanes = 4;
  constexpr int64_t kSteps = 6;
  const auto batches = make_batches(kSteps, kDropoutLanes);
  // Makes all steps with one optimiser, or with two, of which the second resumes where the first ended.
  const auto train = [&](comm::Communicator& comm, WithDropout& net, int64_t until_resumed) {
    static std::mutex generator;
    const Context context = context_of(kDropoutLanes);
    Parameters params(net);
    Optimizer::State state;
    for (int64_t step = 0; step < kSteps;) {
      DistributedOptimizer opt(context, params, torch::optim::AdamOptions(0.01),
                               {.group = comm::testing::borrowed(comm)});
      if (step > 0) opt.restore(state);
      for (const int64_t end = step == 0 ? until_resumed : kSteps; step < end; ++step) {
        for (int64_t lane = opt.lanes().begin; lane < opt.lanes().end; ++lane) {
          const LaneBatch& batch = batches[static_cast<size_t>(step)][static_cast<size_t>(lane)];
          const std::lock_guard lock(generator);
          opt.zero_grad();
          opt.backward(torch::mse_loss(net.forward(batch.x), batch.y), batch.x.size(0));
        }
        opt.step();
      }
      state = opt.gather_state();
    }
  };
  const auto net_like = [](uint64_t seed) {
    torch::manual_seed(seed);
    return std::make_shared<WithDropout>();
  };
  const auto expected = net_like(1);
  with_ranks("inproc", 1, [&](comm::Communicator& comm) { train(comm, *expected, kSteps); });
  const auto resumed = net_like(1);
  with_ranks("inproc", 1, [&](comm::Communicator& comm) { train(comm, *resumed, 2); });
  std::vector<std::shared_ptr<WithDropout>> nets = {resumed};
  for (const int world : {2, 3, 4}) {
    for (int rank = 0; rank < world; ++rank) nets.push_back(net_like(1));
    const size_t first = nets.size() - static_cast<size_t>(world);
    with_ranks(GetParam(), world, [&](comm::Communicator& comm) {
      train(comm, *nets[first + static_cast<size_t>(comm.rank())], kSteps);
    });
  }
  for (const auto& net : nets) {
    for (const auto& item : expected->named_parameters())
      EXPECT_TRUE(torch::equal(net->named_parameters()[item.key()], item.value())) << item.key();
    for (const auto& item : expected->named_buffers())
      EXPECT_TRUE(torch::equal(net->named_buffers()[item.key()], item.value())) << item.key();
  }
}

TEST(DistributedOptimizer, leaves_the_programs_own_random_numbers_alone) {
  with_ranks("inproc", 1, [&](comm::Communicator& comm) {
    const Context context = context_of(2);
    torch::manual_seed(8);
    const torch::Tensor expected = torch::cat({torch::rand({2}), torch::rand({2}), torch::rand({2})});
    WithDropout net;
    Parameters params(net);
    DistributedOptimizer opt(context, params, torch::optim::SGDOptions(0.1),
                             {.group = comm::testing::borrowed(comm)});
    torch::manual_seed(8);
    for (int64_t step = 0; step < 2; ++step) {
      EXPECT_TRUE(torch::equal(torch::rand({2}), expected.narrow(0, 2 * step, 2))) << step;
      for (int lane = 0; lane < 2; ++lane) {
        opt.zero_grad();
        opt.backward(net.forward(torch::ones({4, 5})).mean());
      }
      opt.step();
    }
    opt.zero_grad();
    net.forward(torch::ones({4, 5})).mean().backward();
    opt.add_lane();
    EXPECT_TRUE(torch::equal(torch::rand({2}), expected.narrow(0, 4, 2)));
  });
}

TEST_P(DistributedOptimizerOver, vectors_held_from_before_it_was_made_are_those_that_it_trains) {
  with_ranks(GetParam(), 2, [](comm::Communicator& comm) {
    const Context context = context_of();
    torch::nn::Linear net(3, 2);
    Parameters params(*net);
    const torch::Tensor values = params.values();
    const torch::Tensor weight = values.narrow(0, 0, 6);
    DistributedOptimizer opt(context, params, torch::optim::SGDOptions(0.1),
                             {.group = comm::testing::borrowed(comm)});
    opt.broadcast_from(0);
    opt.zero_grad();
    opt.backward(net->forward(torch::ones({1, 3})).mean());
    opt.step();
    EXPECT_TRUE(torch::equal(values, params.values()));
    EXPECT_TRUE(torch::equal(weight, net->weight.detach().flatten()));
    EXPECT_EQ(values.data_ptr(), params.values().data_ptr());
  });
}

struct WithEmptyBuffer : torch::nn::Module {
  torch::nn::Linear dense = register_module("dense", torch::nn::Linear(3, 2));
  torch::Tensor empty = register_buffer("empty", torch::empty({0}));
};

TEST_P(DistributedOptimizerOver, an_empty_buffer_is_no_obstacle) {
  with_ranks(GetParam(), 2, [](comm::Communicator& comm) {
    const Context context = context_of();
    WithEmptyBuffer net;
    Parameters params(net);
    DistributedOptimizer opt(context, params, torch::optim::SGDOptions(0.1),
                             {.group = comm::testing::borrowed(comm)});
    opt.zero_grad();
    opt.backward(net.dense(torch::ones({4, 3})).mean(), 4);
    EXPECT_EQ(opt.step(), 8);
  });
}

// Like the two nets of a GAN: each has its own group, and gradients of both may be in transit at once.
TEST_P(DistributedOptimizerOver, two_in_one_program_train_over_two_parts_of_one_communicator) {
  constexpr int64_t kLanes = 2;
  const auto batches = make_batches(4, kLanes);
  std::vector<std::string> hashes;
  for (const int world : {1, 2}) {
    std::vector<std::shared_ptr<Net>> nets;
    for (int i = 0; i < 2 * world; ++i) nets.push_back(make_net(static_cast<uint64_t>(i % 2)));
    with_ranks(GetParam(), world, [&](comm::Communicator& comm) {
      const Context context = context_of(kLanes);
      const auto me = static_cast<size_t>(comm.rank());
      Net& a = *nets[2 * me];
      Net& b = *nets[2 * me + 1];
      Parameters params_a(a);
      Parameters params_b(b);
      DistributedOptimizer opt_a(context, params_a, torch::optim::AdamOptions(0.01),
                                 {.group = Group(comm.split(0))});
      DistributedOptimizer opt_b(context, params_b, torch::optim::AdamOptions(0.02),
                                 {.group = Group(comm.split(0))});
      for (const auto& lanes : batches) {
        for (int64_t lane = opt_a.lanes().begin; lane < opt_a.lanes().end; ++lane) {
          const LaneBatch& batch = lanes[static_cast<size_t>(lane)];
          opt_a.zero_grad();
          opt_a.backward(loss_of(a, batch), batch.x.size(0));
          opt_b.zero_grad();
          opt_b.backward(loss_of(b, batch), batch.x.size(0));
        }
        opt_b.step();
        opt_a.step();
      }
    });
    for (size_t i = 0; i < nets.size(); ++i) {
      hashes.push_back(Parameters(*nets[i]).sha256());
      EXPECT_EQ(hashes.back(), hashes[i % 2]) << world << " workers";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, DistributedOptimizerOver, ::testing::Values("inproc", "plain", "shm"),
                         [](const auto& info) { return info.param; });

class SynchronisedOver : public ::testing::TestWithParam<int> {};

void expect_near(const torch::Tensor& actual, const torch::Tensor& expected, const std::string& what) {
  const double scale = expected.abs().max().item<double>() + 1;
  EXPECT_LE((actual - expected).abs().max().item<double>(), 1e-12 * scale) << what;
}

template <class Norm>
struct NormedNet : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return second(torch::relu(norm(first(x)))); }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(5, 7));
  Norm norm = register_module("norm", Norm(7));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(7, 3));
};

template <class Norm>
std::shared_ptr<NormedNet<Norm>> make_normed() {
  torch::manual_seed(1);
  auto net = std::make_shared<NormedNet<Norm>>();
  net->to(torch::kFloat64);
  return net;
}

// Makes ten steps on the whole batch, in one process with torch::nn and in several with SyncBatchNorm.
TEST_P(SynchronisedOver, a_distributed_optimizer_trains_as_one_process_on_the_whole_batch) {
  const int world = GetParam();
  torch::manual_seed(3);
  const torch::Tensor x = torch::randn({10, world * 4, 5}, torch::kFloat64);
  const torch::Tensor y = torch::randn({10, world * 4, 3}, torch::kFloat64);
  const auto expected = make_normed<torch::nn::BatchNorm1d>();
  torch::optim::SGD plain(expected->parameters(), torch::optim::SGDOptions(0.1));
  for (int64_t step = 0; step < 10; ++step) {
    plain.zero_grad();
    torch::mse_loss(expected->forward(x[step]), y[step]).backward();
    plain.step();
  }
  std::vector<std::shared_ptr<NormedNet<nn::SyncBatchNorm>>> nets;
  for (int rank = 0; rank < world; ++rank) nets.push_back(make_normed<nn::SyncBatchNorm>());
  with_ranks("inproc", world, [&](comm::Communicator& comm) {
    RunConfig config;
    config.compute.device = "cpu";
    config.compute.threads = 1;
    const Context context(config, Identity{});
    auto& net = *nets[static_cast<size_t>(comm.rank())];
    Parameters params(net);
    DistributedOptimizer opt(context, params, torch::optim::SGDOptions(0.1),
                             {.group = comm::testing::borrowed(comm)});
    for (int64_t step = 0; step < 10; ++step) {
      const auto mine = [&](const torch::Tensor& all) { return all[step].narrow(0, comm.rank() * 4, 4); };
      opt.zero_grad();
      torch::mse_loss(net.forward(mine(x)), mine(y)).backward();
      opt.step(4);
    }
  });
  for (const auto& net : nets) {
    for (const auto& parameter : expected->named_parameters())
      expect_near(net->named_parameters()[parameter.key()], parameter.value(), parameter.key());
    expect_near(net->norm->running_mean, expected->norm->running_mean, "running mean");
    expect_near(net->norm->running_var, expected->norm->running_var, "running variance");
    EXPECT_TRUE(net->norm->running_var.equal(nets[0]->norm->running_var));
    EXPECT_EQ(net->norm->num_batches_tracked.item<int64_t>(), 10);
  }
}

// The sum of three equal float32 numbers, divided by three, may differ from the original number.
TEST_P(SynchronisedOver, the_mean_over_the_lanes_leaves_running_statistics_as_they_are) {
  constexpr int64_t kMany = 500;
  torch::manual_seed(4);
  const torch::Tensor x = torch::randn({GetParam(), 4, kMany});
  with_ranks("inproc", GetParam(), [&](comm::Communicator& comm) {
    RunConfig config;
    config.compute.device = "cpu";
    config.compute.threads = 1;
    const Context context(config, Identity{});
    nn::SyncBatchNorm norm(kMany);
    norm->register_buffer("constant", torch::linspace(0, 1, kMany));
    Parameters params(*norm);
    DistributedOptimizer opt(context, params, torch::optim::SGDOptions(0.1),
                             {.group = comm::testing::borrowed(comm)});
    for (int step = 0; step < 3; ++step) {
      opt.zero_grad();
      norm(x[comm.rank()]).square().sum().backward();
      std::vector<torch::Tensor> before;
      for (const torch::Tensor& buffer : norm->buffers()) before.push_back(buffer.clone());
      opt.step(4);
      for (size_t b = 0; b < before.size(); ++b) EXPECT_TRUE(norm->buffers()[b].equal(before[b])) << b;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, SynchronisedOver, ::testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace tutti::distributed_optimizer_test

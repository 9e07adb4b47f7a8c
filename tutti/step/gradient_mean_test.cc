#include "tutti/step/gradient_mean.h"

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/comm/nccl/test_device.h"
#include "tutti/params/optimizer.h"
#include "tutti/step/buckets.h"

namespace tutti::gradient_mean_test {
namespace {

using comm::testing::with_device::backends;
using comm::testing::with_device::errors_of_ranks;
using comm::testing::with_device::with_ranks;

constexpr int64_t kWidth = 530;  // a weight matrix is larger than a bucket
constexpr int64_t kLanes = 4;
constexpr int64_t kSteps = 3;

// One parameter is used twice, one not at all, and two become ready in an order that can be reversed.
struct Net : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x, bool turned) {
    x = torch::tanh(twice(torch::tanh(twice(x))));
    const torch::Tensor a = turned ? one(x) : other(x);
    const torch::Tensor b = turned ? other(x) : one(x);
    return norm(a + b);
  }
  torch::nn::Linear twice = register_module("twice", torch::nn::Linear(kWidth, kWidth));
  torch::nn::Linear unused = register_module("unused", torch::nn::Linear(kWidth, 3));
  torch::nn::Linear one = register_module("one", torch::nn::Linear(kWidth, kWidth));
  torch::nn::Linear other = register_module("other", torch::nn::Linear(kWidth, kWidth));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(kWidth));
};

struct Job {
  ReducerOptions reducer = {};
  double clip_norm = 0;
  uint64_t without_data = 0;  // bit l: lane l has no data
  bool turned = false;        // reversed order on odd ranks
  bool early = true;          // gradients are sent while the backward pass runs
  torch::ScalarType type = torch::kFloat;
  // Adam amplifies small differences between small gradients.
  OptimizerOptions optimizer = torch::optim::AdamOptions(1e-2);
};

struct Trained {
  torch::Tensor values;
  torch::Tensor buffers;
  int64_t state_elements = 0;
};

torch::Tensor input_of(int64_t step, int64_t lane) {
  const torch::Tensor index = torch::arange((3 + lane) * kWidth, torch::kFloat).view({-1, kWidth});
  return torch::sin(index * 0.7 + static_cast<double>(step * kLanes + lane));
}

// LibTorch has one generator for all threads, so this takes a lock.
std::unique_ptr<Net> make_net() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  torch::manual_seed(1);
  return std::make_unique<Net>();
}

Trained train(comm::Communicator& comm, const Job& job) {
  const auto own = make_net();
  Net& net = *own;
  net.to(job.type);
  Parameters parameters(net, {.allocate = shared_allocator(comm, torch::kCPU)});
  Optimizer optimizer(
      job.reducer.scatter ? sections_of(parameters, comm.rank(), comm.world()) : parameters.blocks(),
      job.optimizer);
  GradientMean mean(parameters, comm, kLanes, job.reducer);
  for (int64_t step = 0; step < kSteps; ++step) {
    mean.begin_step(step);
    for (int64_t lane = mean.lanes().begin; lane < mean.lanes().end; ++lane) {
      if ((job.without_data >> lane) & 1) {
        mean.skip();
        continue;
      }
      mean.begin_lane();
      const torch::Tensor x = input_of(step, lane).to(job.type);
      const torch::Tensor loss = net.forward(x, job.turned && comm.rank() % 2 == 1).square().mean();
      if (job.early) mean.begin_backward(loss, x.size(0));
      loss.backward(torch::full_like(loss, mean.weight(x.size(0))));
      if (!job.early) mean.begin_backward(loss, x.size(0));
      mean.add();
    }
    if (mean.finish().examples == 0) continue;
    if (job.clip_norm > 0) mean.clip_norm(job.clip_norm);
    optimizer.step();
    mean.share_update();
  }
  Trained trained{parameters.values().clone(), parameters.buffer_vectors()[0].clone()};
  for (const auto& slot : optimizer.state().slots) trained.state_elements += slot.vector.numel();
  return trained;
}

Trained train_alone(Job job) {
  Trained alone;
  with_ranks("inproc", 1, [&](comm::Communicator& comm) { alone = train(comm, job); });
  return alone;
}

class GradientMeanOver : public ::testing::TestWithParam<std::string> {
 protected:
  void same_bits_as_alone(const Job& job, const std::vector<int>& worlds) {
    const Trained alone = train_alone(job);
    for (const int world : worlds) {
      with_ranks(GetParam(), world, [&](comm::Communicator& comm) {
        const Trained trained = train(comm, job);
        EXPECT_TRUE(torch::equal(trained.values, alone.values)) << world << " workers, rank " << comm.rank();
        EXPECT_TRUE(torch::equal(trained.buffers, alone.buffers))
            << world << " workers, rank " << comm.rank();
      });
    }
  }
};

TEST_P(GradientMeanOver, has_the_same_bits_at_any_number_of_workers) { same_bits_as_alone({}, {2, 3, 4, 5}); }

TEST_P(GradientMeanOver, does_not_mind_when_gradients_are_sent) {
  same_bits_as_alone({.early = false}, {2, 3});
}

TEST_P(GradientMeanOver, does_not_mind_in_which_order_gradients_come) {
  const Trained alone = train_alone({});
  with_ranks(GetParam(), 2, [&](comm::Communicator& comm) {
    const Trained trained = train(comm, {.turned = true});
    // Autograd may also add the inputs of the two branches in another order. The test only checks that
    // gradients are not mixed up.
    EXPECT_TRUE(torch::allclose(trained.values, alone.values, 1e-3, 1e-4)) << comm.rank();
  });
}

TEST_P(GradientMeanOver, leaves_out_lanes_without_data) {
  for (const uint64_t without_data : {0x1U, 0x8U, 0xcU, 0x5U, 0xfU})
    same_bits_as_alone({.without_data = without_data}, {2, 3});
}

TEST_P(GradientMeanOver, clips_to_the_same_bits_whether_gradients_are_scattered_or_not) {
  same_bits_as_alone({.clip_norm = 1e-3}, {2, 3});
  same_bits_as_alone({.reducer = {.scatter = true}, .clip_norm = 1e-3}, {2, 3, 4});
}

// Half precision is rounded at every addition, on whichever worker it is made.
TEST_P(GradientMeanOver, has_the_same_bits_in_bfloat16_at_any_number_of_workers) {
  same_bits_as_alone({.type = torch::kBFloat16}, {1, 2, 3, 4, 8});
}

TEST_P(GradientMeanOver, scatters_the_optimisers_state) {
  const int64_t whole = train_alone({}).state_elements;
  for (const int world : {2, 4}) {
    with_ranks(GetParam(), world, [&](comm::Communicator& comm) {
      const Trained trained = train(comm, {.reducer = {.scatter = true}});
      EXPECT_NEAR(static_cast<double>(trained.state_elements * world), static_cast<double>(whole),
                  0.02 * static_cast<double>(whole));
    });
  }
}

TEST_P(GradientMeanOver, adds_in_any_order_to_nearly_the_same) {
  const Trained alone = train_alone({.optimizer = torch::optim::SGDOptions(0.1)});
  for (const int world : {2, 3, 5}) {
    with_ranks(GetParam(), world, [&](comm::Communicator& comm) {
      const Trained trained =
          train(comm, {.reducer = {.fast = true}, .optimizer = torch::optim::SGDOptions(0.1)});
      EXPECT_TRUE(torch::allclose(trained.values, alone.values, 1e-3, 1e-4)) << world;
    });
  }
}

TEST_P(GradientMeanOver, all_workers_have_the_same_after_rounding) {
  for (const auto wire : {torch::kBFloat16, torch::kHalf}) {
    std::vector<Trained> trained(3);
    with_ranks(GetParam(), 3, [&](comm::Communicator& comm) {
      trained[static_cast<size_t>(comm.rank())] =
          train(comm, {.reducer = {.wire = {.type = wire}}, .optimizer = torch::optim::SGDOptions(0.1)});
    });
    EXPECT_TRUE(torch::equal(trained[0].values, trained[1].values));
    EXPECT_TRUE(torch::equal(trained[0].values, trained[2].values));
    // Running statistics are never rounded.
    EXPECT_TRUE(torch::allclose(
        trained[0].buffers, train_alone({.optimizer = torch::optim::SGDOptions(0.1)}).buffers, 1e-2, 1e-3));
  }
}

TEST_P(GradientMeanOver, finds_a_second_backward_pass) {
  const auto errors = errors_of_ranks(GetParam(), 2, std::chrono::seconds(60), [](comm::Communicator& comm) {
    const auto own = make_net();
    Net& net = *own;
    Parameters parameters(net, {.allocate = shared_allocator(comm, torch::kCPU)});
    GradientMean mean(parameters, comm, 2);
    mean.begin_step(0);
    mean.begin_lane();
    const torch::Tensor loss = net.forward(input_of(0, 0), false).square().mean();
    mean.begin_backward(loss, 1);
    loss.backward({}, true);
    loss.backward();
    mean.add();
    mean.finish();
  });
  // In shared memory nothing is sent before the end, so the two passes count as one.
  const bool sent_early = GetParam() == "plain" || GetParam() == "device";
  for (const std::string& error : errors)
    EXPECT_EQ(error.find("twice in one lane") != std::string::npos, sent_early) << error;
}

// Hosts of equal and of different sizes, and more than two hosts. In "abab" the ranks of a host are not
// contiguous, so nothing is added within a host.
TEST(GradientMean, has_the_same_bits_on_several_hosts) {
  for (const Job& job : {Job{}, Job{.clip_norm = 1e-3, .without_data = 0x2},
                         Job{.reducer = {.scatter = true}}, Job{.type = torch::kBFloat16}}) {
    const Trained alone = train_alone(job);
    for (const std::string hosts : {"aabb", "abbb", "aab", "aaabbc", "abab"}) {
      with_ranks(hosts, static_cast<int>(hosts.size()), [&](comm::Communicator& comm) {
        EXPECT_EQ(comm.hosts() != nullptr, hosts != "abab");
        const Trained trained = train(comm, job);
        EXPECT_TRUE(torch::equal(trained.values, alone.values)) << hosts << ", rank " << comm.rank();
        EXPECT_TRUE(torch::equal(trained.buffers, alone.buffers)) << hosts << ", rank " << comm.rank();
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, GradientMeanOver, ::testing::ValuesIn(backends()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tutti::gradient_mean_test

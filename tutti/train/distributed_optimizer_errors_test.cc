#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tutti/base/error.h"
#include "tutti/base/test_errors.h"
#include "tutti/cluster/roles.h"
#include "tutti/comm/test_ranks.h"
#include "tutti/step/test_lanes.h"
#include "tutti/train/distributed_optimizer.h"

namespace tutti::distributed_optimizer_errors_test {
namespace {

using comm::testing::errors_of_ranks;
using comm::testing::with_ranks;
using ::testing::AllOf;
using ::testing::HasSubstr;

class DistributedOptimizerErrors : public ::testing::TestWithParam<std::string> {};

TEST_P(DistributedOptimizerErrors, names_the_first_difference_between_two_models) {
  using torch::nn::Linear;
  const auto errors_with = [&](const std::function<torch::nn::Sequential(bool other)>& make,
                               int64_t lanes_of_other = 0) {
    return errors_of_ranks(GetParam(), 3, std::chrono::seconds(60), [&](comm::Communicator& comm) {
      const bool other = comm.rank() == 2;
      const Context context = context_of(other ? lanes_of_other : 0);
      torch::nn::Sequential net = make(other);
      Parameters params(*net);
      DistributedOptimizer(context, params, torch::optim::SGDOptions(0.1),
                           {.group = comm::testing::borrowed(comm)});
    });
  };
  const auto expect_all = [](const std::vector<std::string>& errors, const char* text) {
    for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr(text));
  };
  expect_all(
      errors_with(
          [](bool other) { return torch::nn::Sequential(Linear(3, 2), Linear(2, other ? 4000 : 5)); }),
      "rank 0 (worker/0) has '1.weight float32[5,2]', rank 2 (worker/0) has '1.weight float32[4000,2]'");
  expect_all(errors_with([](bool other) {
               torch::nn::Sequential net(Linear(3, 2));
               if (other) net->to(torch::kDouble);
               return net;
             }),
             "rank 0 (worker/0) has '0.weight float32[2,3]', rank 2 (worker/0) has '0.weight float64[2,3]'");
  expect_all(errors_with([](bool other) {
               return other ? torch::nn::Sequential(Linear(2, 4), Linear(3, 2))
                            : torch::nn::Sequential(Linear(3, 2), Linear(2, 4));
             }),
             "rank 0 (worker/0) has '0.weight float32[2,3]', rank 2 (worker/0) has '0.weight float32[4,2]'");
  expect_all(errors_with([](bool) { return torch::nn::Sequential(Linear(3, 2)); }, 6),
             "rank 0 (worker/0) has '--lanes 0', rank 2 (worker/0) has '--lanes 6'");
}

// Returns the loss wrapped so that its backward pass throws.
torch::Tensor with_a_backward_that_fails(const torch::Tensor& loss) {
  const torch::Tensor on_the_way = loss * 1;
  on_the_way.register_hook([](const torch::Tensor&) { throw std::runtime_error("no memory is left"); });
  return on_the_way * 1;
}

// In each step the `failing` rank fails the first backward pass of the first of its two lanes.
TEST_P(DistributedOptimizerErrors, a_backward_pass_that_failed_can_be_made_again) {
  constexpr int64_t kLanes = 4;
  const auto batches = make_batches(3, kLanes);
  std::vector<std::string> hashes;
  for (const int failing : {-1, 0, 1}) {
    std::vector<std::shared_ptr<Net>> nets = {make_net(1), make_net(1)};
    with_ranks(GetParam(), 2, [&](comm::Communicator& comm) {
      const Context context = context_of(kLanes);
      Net& net = *nets[static_cast<size_t>(comm.rank())];
      Parameters params(net);
      DistributedOptimizer opt(context, params, torch::optim::AdamOptions(0.01),
                               {.group = comm::testing::borrowed(comm)});
      for (const auto& lanes : batches) {
        for (int64_t lane = opt.lanes().begin; lane < opt.lanes().end; ++lane) {
          const LaneBatch& batch = lanes[static_cast<size_t>(lane)];
          if (comm.rank() == failing && lane == opt.lanes().begin) {
            opt.zero_grad();
            EXPECT_THROW(opt.backward(with_a_backward_that_fails(loss_of(net, batch)), 9), std::exception);
          }
          opt.zero_grad();
          opt.backward(loss_of(net, batch), batch.x.size(0));
        }
        opt.step();
      }
    });
    for (const auto& net : nets) {
      const Parameters params(*net);
      hashes.push_back(params.sha256());
      EXPECT_TRUE(torch::equal(net->norm->running_var, nets[0]->norm->running_var));
    }
  }
  for (const std::string& hash : hashes) EXPECT_EQ(hash, hashes[0]);
}

// Over a network the other workers wait for the last lane of a worker as soon as its loss is known.
TEST(DistributedOptimizer, a_last_backward_pass_that_fails_is_what_all_workers_hear_of) {
  const auto batches = make_batches(1, 2);
  const std::vector<std::shared_ptr<Net>> nets = {make_net(1), make_net(1)};
  const auto errors = errors_of_ranks("plain", 2, std::chrono::seconds(5), [&](comm::Communicator& comm) {
    const Context context = context_of();
    Net& net = *nets[static_cast<size_t>(comm.rank())];
    Parameters params(net);
    DistributedOptimizer opt(context, params, torch::optim::SGDOptions(0.1),
                             {.group = comm::testing::borrowed(comm)});
    const LaneBatch& batch = batches[0][static_cast<size_t>(comm.rank())];
    if (comm.rank() == 1) {
      opt.zero_grad();
      EXPECT_THROW(opt.backward(with_a_backward_that_fails(loss_of(net, batch))), std::exception);
    }
    opt.zero_grad();
    opt.backward(loss_of(net, batch));
    opt.step();
  });
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("no memory is left"));
}

TEST_P(DistributedOptimizerErrors, after_a_step_that_failed_no_later_one_is_made_of_what_it_has_left) {
  const auto batches = make_batches(1, 2);
  const std::vector<std::shared_ptr<Net>> nets = {make_net(1), make_net(1)};
  std::promise<void> given_up;
  errors_of_ranks(GetParam(), 2, std::chrono::milliseconds(300), [&](comm::Communicator& comm) {
    const Context context = context_of();
    Net& net = *nets[static_cast<size_t>(comm.rank())];
    Parameters params(net);
    DistributedOptimizer opt(context, params, torch::optim::SGDOptions(0.1),
                             {.group = comm::testing::borrowed(comm)});
    if (comm.rank() == 1) {  // never takes part
      given_up.get_future().wait();
      return;
    }
    const std::string before = params.sha256();
    for (int attempt = 0; attempt < 3; ++attempt) {
      EXPECT_THROW(
          {
            opt.zero_grad();
            opt.backward(loss_of(net, batches[0][0]));
            opt.step();
          },
          Error);
    }
    EXPECT_EQ(params.sha256(), before);
    given_up.set_value();
  });
}

TEST_P(DistributedOptimizerErrors, names_the_step_after_those_that_were_restored) {
  const std::vector<std::shared_ptr<Net>> nets = {make_net(1), make_net(1)};
  std::promise<void> given_up;
  const auto errors =
      errors_of_ranks(GetParam(), 2, std::chrono::milliseconds(300), [&](comm::Communicator& comm) {
        const Context context = context_of();
        Parameters params(*nets[static_cast<size_t>(comm.rank())]);
        DistributedOptimizer opt(context, params, torch::optim::SGDOptions(0.1),
                                 {.group = comm::testing::borrowed(comm)});
        opt.restore({.steps = 5, .slots = {}});
        if (comm.rank() == 0) {
          EXPECT_THROW(opt.step(0), Error);
          given_up.set_value();
          opt.step(0);
        } else {
          given_up.get_future().wait();
        }
      });
  EXPECT_THAT(errors[0], HasSubstr("at step 5"));
}

TEST_P(DistributedOptimizerErrors, between_the_last_lane_and_the_step_nothing_may_touch_the_gradients) {
  const auto batches = make_batches(3, 2);
  const std::vector<std::shared_ptr<Net>> nets = {make_net(1), make_net(1)};
  const auto undisturbed = make_net(1);
  const auto train = [&](comm::Communicator& comm, Net& net, bool disturbed) {
    const Context context = context_of(2);
    Parameters params(net);
    DistributedOptimizer opt(context, params, torch::optim::SGDOptions(0.1),
                             {.group = comm::testing::borrowed(comm)});
    for (const auto& lanes : batches) {
      for (int64_t lane = opt.lanes().begin; lane < opt.lanes().end; ++lane) {
        opt.zero_grad();
        opt.backward(loss_of(net, lanes[static_cast<size_t>(lane)]), 4 + lane);
      }
      if (disturbed) {
        const auto refused = [&](const std::function<void()>& body) {
          expect_error(ErrorKind::InvalidArgument, HasSubstr("step()"), body);
        };
        refused([&] { opt.zero_grad(); });
        refused([&] { opt.goes_on(true); });
        refused([&] { opt.communicator(); });
        refused([&] { opt.gather_state(); });
        const torch::Tensor further = loss_of(net, lanes[0]);
        if (GetParam() == "plain") refused([&] { further.backward(); });
      }
      opt.step();
    }
  };
  with_ranks("inproc", 1, [&](comm::Communicator& comm) { train(comm, *undisturbed, false); });
  with_ranks(GetParam(), 2,
             [&](comm::Communicator& comm) { train(comm, *nets[static_cast<size_t>(comm.rank())], true); });
  for (const auto& net : nets) EXPECT_TRUE(torch::equal(net->first->weight, undisturbed->first->weight));
}

TEST_P(DistributedOptimizerErrors, a_parameter_that_was_frozen_too_late_is_named) {
  for (const int world : {1, 2}) {
    const auto errors =
        errors_of_ranks(GetParam(), world, std::chrono::seconds(60), [](comm::Communicator& comm) {
          const Context context = context_of();
          torch::nn::Sequential net(torch::nn::Linear(3, 2), torch::nn::Linear(2, 2));
          Parameters params(*net);
          net->named_parameters()["1.weight"].requires_grad_(false);
          DistributedOptimizer(context, params, torch::optim::SGDOptions(0.1),
                               {.group = comm::testing::borrowed(comm)});
        });
    for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("1.weight"));
  }
}

TEST_P(DistributedOptimizerErrors, a_parameter_that_was_unfrozen_too_late_is_named) {
  with_ranks(GetParam(), 1, [](comm::Communicator& comm) {
    const Context context = context_of();
    torch::nn::Sequential net(torch::nn::Linear(3, 2), torch::nn::Linear(2, 2));
    net->named_parameters()["1.weight"].requires_grad_(false);
    Parameters params(*net);
    DistributedOptimizer opt(context, params, torch::optim::SGDOptions(0.1),
                             {.group = comm::testing::borrowed(comm)});
    opt.zero_grad();
    net->forward(torch::ones({1, 3})).mean().backward();
    opt.step();
    net->named_parameters()["1.weight"].requires_grad_(true);
    expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("1.weight"), HasSubstr("unfrozen")),
                 [&] { opt.zero_grad(); });
  });
}

TEST_P(DistributedOptimizerErrors, workers_with_different_learning_rates_are_told_so) {
  const auto errors = errors_of_ranks(GetParam(), 3, std::chrono::seconds(60), [](comm::Communicator& comm) {
    const Context context = context_of();
    torch::nn::Linear net(3, 2);
    Parameters params(*net);
    DistributedOptimizer opt(context, params, torch::optim::SGDOptions(0.1),
                             {.group = comm::testing::borrowed(comm)});
    opt.broadcast_from(0);
    for (int step = 0; step < 3; ++step) {
      opt.optimizer().set_learning_rate(step == 2 && comm.rank() == 1 ? 0.25 : 0.5 / (step + 1));
      opt.zero_grad();
      opt.backward(net->forward(torch::ones({1, 3})).mean());
      opt.step();
    }
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, AllOf(HasSubstr("different learning rates at step 2"), HasSubstr("rank 1 uses 0.25")));
  }
}

TEST(DistributedOptimizer, takes_a_loss_of_one_number_whatever_its_shape_and_no_other) {
  const Context context = context_of();
  const auto net = make_net(1);
  Parameters params(*net);
  DistributedOptimizer opt(context, params, torch::optim::SGDOptions(0.1));
  const LaneBatch batch = make_batches(1, 1)[0][0];
  opt.zero_grad();
  expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("float32[4,3]"), HasSubstr("mean")),
               [&] { opt.backward(net->forward(batch.x), 4); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("does not depend on any trained parameter"),
               [&] { opt.backward(torch::ones({}), 4); });
  opt.zero_grad();
  opt.backward(loss_of(*net, batch).reshape({1}), 4);
  EXPECT_EQ(opt.step(), 4);
}

TEST(DistributedOptimizer, says_when_workers_have_nothing_to_do) {
  for (const int64_t lanes : {1, 2}) {
    ::testing::internal::CaptureStderr();
    with_ranks("inproc", 2, [&](comm::Communicator& comm) {
      const Context context = context_of(lanes);
      torch::nn::Linear net(2, 2);
      Parameters params(*net);
      DistributedOptimizer(context, params, torch::optim::SGDOptions(0.1),
                           {.group = comm::testing::borrowed(comm)});
    });
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(said.find("1 of the 2 workers have no lane") != std::string::npos, lanes == 1) << said;
  }
}

TEST(DistributedOptimizer, says_what_needs_a_loop_or_connected_workers_where_there_are_servers) {
  const auto net = make_net(1);
  for (const std::string strategy : {"ps-sync", "ps-async"}) {
    RunConfig config = context_of().config();
    config.training.strategy = strategy;
    const Context context(config, identity_in(ClusterSpec::parse("ps|h:2222,worker|h:2223;h:2224"),
                                              {.job = "worker", .index = 0}, "a test"));
    Parameters params(*net);
    DistributedOptimizer opt(context, params, torch::optim::SGDOptions(0.1));
    const auto expect_refused = [](const char* why, const std::function<void()>& call) {
      expect_error(ErrorKind::InvalidArgument, HasSubstr(why), call);
    };
    expect_refused("Make the steps in a tutti::Loop", [&] { opt.zero_grad(); });
    expect_refused("not connected", [&] { opt.broadcast_from(0); });
    expect_refused("not connected", [&] { opt.gather_state(); });
    expect_refused("not connected", [&] { opt.communicator(); });
    if (strategy == "ps-async") {
      EXPECT_TRUE(opt.goes_on(true));
      EXPECT_FALSE(opt.goes_on(false));
    } else {
      expect_refused("cannot tell each other whether they have data", [&] { opt.goes_on(true); });
    }
  }
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

TEST(DistributedOptimizer, lanes_of_two_optimisers_are_added_in_opposite_order) {
  const Context context = context_of(1);
  const auto encoder = make_net(1);
  const auto head = make_net(2);
  Parameters encoder_params(*encoder);
  Parameters head_params(*head);
  const Group all = connect(context);
  DistributedOptimizer a(context, encoder_params, torch::optim::SGDOptions(0.1), {.group = all.split(0)});
  DistributedOptimizer b(context, head_params, torch::optim::SGDOptions(0.1), {.group = all.split(0)});
  const auto loss = [&] {
    return encoder_params.trained()[0].tensor.square().mean() +
           head_params.trained()[0].tensor.square().mean();
  };
  a.zero_grad();
  b.zero_grad();
  expect_error(ErrorKind::InvalidArgument, HasSubstr("call loss.backward(), and then add_lane() of each"),
               [&] { b.backward(loss()); });
  loss().backward();
  expect_error(ErrorKind::InvalidArgument, HasSubstr("add that lane first"), [&] { a.add_lane(); });
  b.add_lane();
  a.add_lane();
  a.step();
  b.step();
  // In turns, each optimiser is alone.
  a.zero_grad();
  a.backward(loss());
  a.step();
  {
    DistributedOptimizer broken_off(context, head_params, torch::optim::SGDOptions(0.1),
                                    {.group = all.split(0)});
    broken_off.zero_grad();
  }
  b.zero_grad();
  b.backward(loss());
  b.step();
}

// A worker that does not pass its loss makes it unknown on all, as it would be in one process.
TEST(DistributedOptimizer, a_loss_that_one_worker_does_not_know_is_unknown_on_all) {
  for (const int knowing : {0, 1, 2}) {  // 2: both
    comm::testing::with_ranks("plain", 2, [&](comm::Communicator& comm) {
      const Context context = context_of(2);
      const auto net = make_net(1);
      Parameters params(*net);
      DistributedOptimizer opt(context, params, torch::optim::SGDOptions(0.1),
                               {.group = comm::testing::borrowed(comm)});
      opt.zero_grad();
      params.trained()[0].tensor.square().mean().backward();
      const bool knows = knowing == 2 || comm.rank() == knowing;
      opt.add_lane(1, knows ? torch::full({}, 3.0) : torch::Tensor());
      opt.step();
      EXPECT_EQ(opt.last_step().loss_sum.defined(), knowing == 2);
    });
  }
  const Context context = context_of(1);
  const auto net = make_net(1);
  Parameters params(*net);
  DistributedOptimizer opt(context, params, torch::optim::SGDOptions(0.1));
  opt.zero_grad();
  for (const torch::Tensor& odd : {torch::zeros({2}), torch::zeros({1}, torch::kComplexFloat)})
    expect_error(ErrorKind::InvalidArgument, HasSubstr("expected a single number"),
                 [&] { opt.add_lane(1, odd); });
}

INSTANTIATE_TEST_SUITE_P(Backends, DistributedOptimizerErrors, ::testing::Values("inproc", "plain", "shm"),
                         [](const auto& info) { return info.param; });

// Autocast would have no effect on it, and the bits would be those of fp32.
TEST(DistributedOptimizer, refuses_a_forward_pass_outside_of_the_lane_in_lower_precision) {
  RunConfig config = context_of(1).config();
  config.compute.precision = "bf16";
  const Context context(config, Identity{});
  torch::nn::Linear net(3, 2);
  Parameters params(*net);
  DistributedOptimizer opt(context, params, torch::optim::SGDOptions(0.1));
  const auto refused = HasSubstr("--precision bf16: call zero_grad() before the forward pass");
  const auto forward = [&] { return net->forward(torch::ones({1, 3})); };
  const torch::Tensor too_early = forward().mean();
  EXPECT_EQ(forward().scalar_type(), torch::kFloat32);
  expect_error(ErrorKind::InvalidArgument, refused, [&] { opt.backward(too_early); });
  expect_error(ErrorKind::InvalidArgument, refused, [&] { opt.add_lane(); });
  opt.zero_grad();
  EXPECT_EQ(forward().scalar_type(), torch::kBFloat16);
  expect_error(ErrorKind::InvalidArgument, refused, [&] { opt.backward(too_early); });
  expect_error(ErrorKind::InvalidArgument, refused, [&] { opt.backward(too_early * 2 + forward().mean()); });
  opt.backward(forward().to(torch::kFloat32).mean());
  EXPECT_EQ(forward().scalar_type(), torch::kFloat32) << "the lane has been added";
  opt.step();
  opt.zero_grad();
  const torch::Tensor loss = forward().to(torch::kFloat32).mean();
  loss.backward();
  EXPECT_EQ(forward().scalar_type(), torch::kBFloat16) << "another pass of the same lane may follow";
  opt.add_lane(1, loss);
  opt.step();
  EXPECT_EQ(forward().scalar_type(), torch::kFloat32);
  opt.zero_grad();
  opt.step(0);  // a worker without data
}

TEST(DistributedOptimizer, skips_lanes_without_examples) {
  const Context context = context_of(3);
  torch::nn::Linear net(3, 1);
  Parameters params(*net);
  DistributedOptimizer opt(context, params, torch::optim::SGDOptions(0.1));
  const std::string before = params.sha256();
  EXPECT_EQ(opt.step(0), 0);
  EXPECT_EQ(params.sha256(), before);
  opt.zero_grad();
  const torch::Tensor loss = net(torch::ones({0, 3})).sum();
  expect_error(ErrorKind::InvalidArgument, ::testing::HasSubstr("is skipped by add_lane(0)"),
               [&] { opt.backward(loss, 0); });
  opt.add_lane(0);
  for (int lane = 1; lane < 3; ++lane) {
    opt.zero_grad();
    opt.backward(net(torch::ones({2, 3})).mean(), 2);
  }
  EXPECT_EQ(opt.step(), 4);
}

// The scopes end in opposite order.
TEST(DistributedOptimizer, lanes_of_two_optimisers_share_the_lower_precision) {
  RunConfig config = context_of(1).config();
  config.compute.precision = "bf16";
  const Context context(config, Identity{});
  const Group all = connect(context);
  torch::nn::Linear first(3, 2);
  torch::nn::Linear second(2, 1);
  Parameters params_a(*first);
  Parameters params_b(*second);
  DistributedOptimizer a(context, params_a, torch::optim::SGDOptions(0.1), {.group = all.split(0)});
  DistributedOptimizer b(context, params_b, torch::optim::SGDOptions(0.1), {.group = all.split(0)});
  a.zero_grad();
  b.zero_grad();
  second->forward(first->forward(torch::ones({1, 3}))).to(torch::kFloat32).mean().backward();
  b.add_lane();
  EXPECT_EQ(first->forward(torch::ones({1, 3})).scalar_type(), torch::kBFloat16) << "that of a is open";
  a.add_lane();
  EXPECT_EQ(first->forward(torch::ones({1, 3})).scalar_type(), torch::kFloat32);
}

TEST(DistributedOptimizer, refuses_another_layout_than_the_flags_say) {
  RunConfig config = context_of(1).config();
  config.compute.layout = "channels-last";
  const Context context(config, Identity{});
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(1, 3, 3));
  Parameters params(*conv);
  expect_error(ErrorKind::InvalidArgument,
               AllOf(HasSubstr("--layout channels-last"), HasSubstr("layout_for(context, net)")),
               [&] { DistributedOptimizer(context, params, torch::optim::SGDOptions(0.1)); });
  torch::nn::Linear linear(3, 2);  // which has no images
  Parameters of_linear(*linear);
  EXPECT_EQ(layout_for(context, *conv), Layout::ChannelsLast);
  config.compute.layout = "auto";
  EXPECT_EQ(layout_for(Context(config, Identity{}), *linear), Layout::Contiguous);
  EXPECT_EQ(layout_for(Context(config, Identity{}), *conv), Layout::ChannelsLast);
  config.compute.layout = "channels-last";
  DistributedOptimizer(Context(config, Identity{}), of_linear, torch::optim::SGDOptions(0.1));
}

}  // namespace
}  // namespace tutti::distributed_optimizer_errors_test

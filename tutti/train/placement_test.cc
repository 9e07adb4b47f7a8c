// Tests of device scopes and of --log-placement.
#include <gmock/gmock.h>

#include "tutti/base/test_errors.h"
#include "tutti/base/this_host.h"
#include "tutti/cluster/test_identity.h"
#include "tutti/params/device_scope.h"
#include "tutti/train/distributed_optimizer.h"
#include "tutti/train/test_training.h"
#include "tutti/train/trainer.h"

namespace tutti::placement_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const torch::optim::SGDOptions kSgd(0.1);

std::shared_ptr<TestNet> net_on(const char* scope) {
  const auto on = device(scope);
  return test_net();
}

TEST(Placement, of_a_part_on_another_device_is_refused_and_not_ignored) {
  const Context context = test_context(test_flags());
  const auto expect_refused = [](const auto& body) {
    expect_error(
        ErrorKind::InvalidArgument,
        AllOf(HasSubstr("parameter conv.weight"), HasSubstr("/device:GPU:0"), HasSubstr("trains on cpu")),
        body);
  };
  expect_refused([&] { Trainer(context, net_on("/gpu:0"), kSgd, test_loss); });
  expect_refused([&] {
    Parameters parameters(*net_on("/gpu:0"));
    DistributedOptimizer(test_context(test_flags()), parameters, kSgd);
  });
}

TEST(Placement, on_the_device_that_trains_is_honoured) {
  const Context context = test_context(test_flags());
  Trainer trainer(context, net_on("/cpu:0"), kSgd, test_loss);
  trainer.fit(test_feed(), {.steps = 1});
}

RunConfig saying_where() {
  RunConfig config = test_flags();
  config.output.log_placement = true;
  config.output.log_level = "info";
  config.training.lanes = 2;
  return config;
}

template <class Body>
std::string log_of(const Body& body) {
  testing::internal::CaptureStderr();
  body();
  return testing::internal::GetCapturedStderr();
}

std::string place(const std::string& what) {
  return what + ": /job:worker/replica:0/task:0/device:CPU:0 on host " + host_name() + "\n";
}

TEST(Placement, is_told_of_every_parameter_without_servers_too) {
  const Context context = test_context(saying_where());
  const auto net = test_net();
  net->conv->bias.set_requires_grad(false);
  const std::string log =
      log_of([&] { Trainer(context, net, kSgd, test_loss).fit(test_feed(), {.steps = 1}); });
  for (const char* what :
       {"conv.weight: (Parameter float32[3,1,3,3])", "conv.bias: (Parameter float32[3])",
        "head.bias: (Parameter float32[4])", "norm.running_mean: (Buffer float32[3])", "lane 1: (Lane)"})
    EXPECT_THAT(log, HasSubstr(place(what)));
}

TEST(Placement, is_told_where_it_was_asked_for_alone) {
  RunConfig config = saying_where();
  config.output.log_placement = false;
  const Context context = test_context(config);
  EXPECT_THAT(log_of([&] { Trainer(context, test_net(), kSgd, test_loss).fit(test_feed(), {.steps = 1}); }),
              Not(HasSubstr("(Parameter")));
}

TEST(Placement, is_told_in_a_loop_of_ones_own) {
  const Context context = test_context(saying_where());
  const auto net = test_net();
  Parameters parameters(*net);
  EXPECT_THAT(
      log_of([&] { DistributedOptimizer(context, parameters, kSgd); }),
      AllOf(HasSubstr(place("head.bias: (Parameter float32[4])")), HasSubstr(place("lane 0: (Lane)"))));
}

TEST(Placement, of_a_task_that_trains_nothing_is_an_error) {
  const RunConfig config = test_flags();
  const Context server(config, identity("ps|a:1,worker|a:2", "ps", 0));
  expect_error(ErrorKind::InvalidArgument, HasSubstr("ps/0 is a parameter server"),
               [&] { Trainer(server, test_net(), kSgd, test_loss); });
}

}  // namespace
}  // namespace tutti::placement_test

#include "tutti/params/device_scope.h"

#include <thread>

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tutti/base/test_errors.h"

namespace tutti::device_scope_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

namespace nn = torch::nn;

std::string place_of(const torch::Tensor& parameter) {
  const auto device = pin_of(parameter);
  return device ? device->to_string() : "";
}

std::vector<std::string> places_in(const nn::Module& module) {
  std::vector<std::string> places;
  for (const torch::Tensor& parameter : module.parameters()) places.push_back(place_of(parameter));
  return places;
}

TEST(DeviceScope, pins_what_is_created_inside_and_nothing_else) {
  const nn::Linear before(3, 2);
  const nn::Linear inside = [] {
    const auto on = device("/job:ps/task:1");
    return nn::Linear(3, 2);
  }();
  const nn::Linear after(3, 2);
  EXPECT_THAT(places_in(*inside), ElementsAre("/job:ps/task:1", "/job:ps/task:1"));
  EXPECT_THAT(places_in(*before), ElementsAre("", ""));
  EXPECT_THAT(places_in(*after), ElementsAre("", ""));
}

// Covers every way in which a module gets its parameters.
TEST(DeviceScope, sees_all_kinds_of_modules) {
  const DeviceScope on("/job:ps");
  nn::Module own;
  own.register_parameter("randn", torch::randn({2, 2}));
  own.register_parameter("product", torch::ones({2}) * 3);
  own.register_parameter("copy", torch::ones({2}).detach().clone());
  own.register_parameter("of_a_type", torch::ones({2}).to(torch::kFloat64));
  const std::vector<std::shared_ptr<nn::Module>> modules = {nn::Conv2d(1, 2, 3).ptr(),
                                                            nn::BatchNorm2d(2).ptr(),
                                                            nn::Embedding(5, 2).ptr(),
                                                            nn::LSTM(2, 3).ptr(),
                                                            nn::Linear(2, 3)->clone(),
                                                            nn::MultiheadAttention(4, 2).ptr(),
                                                            nn::Sequential(nn::Linear(1, 1)).ptr()};
  for (const auto& module : modules)
    EXPECT_THAT(places_in(*module), ::testing::Each("/job:ps")) << module->name();
  EXPECT_THAT(places_in(own), ::testing::Each("/job:ps"));
}

TEST(DeviceScope, merges_field_by_field_and_the_inner_one_wins) {
  const DeviceScope outer("/job:ps/task:0/cpu:0");
  const nn::Linear first(1, 1);
  const auto second = [] {
    const DeviceScope inner("/task:1");
    return nn::Linear(1, 1);
  }();
  const nn::Linear third(1, 1);
  EXPECT_EQ(place_of(first->weight), "/job:ps/task:0/device:CPU:0");
  EXPECT_EQ(place_of(second->weight), "/job:ps/task:1/device:CPU:0");
  EXPECT_EQ(place_of(third->weight), "/job:ps/task:0/device:CPU:0");
}

TEST(DeviceScope, does_not_pin_what_is_only_written_to_inside) {
  nn::Linear outside(3, 2);
  const DeviceScope on("/job:ps/task:1");
  nn::init::normal_(outside->weight);
  {
    const torch::NoGradGuard no_grad;
    outside->bias.add_(1);
    torch::add_out(outside->bias, outside->bias, outside->bias);
  }
  EXPECT_THAT(places_in(*outside), ElementsAre("", ""));
}

TEST(DeviceScope, is_of_one_thread) {
  const DeviceScope on("/job:ps/task:1");
  std::string place = "unknown";
  std::thread([&] { place = place_of(nn::Linear(1, 1)->weight); }).join();
  EXPECT_EQ(place, "");
}

TEST(DeviceScope, holds_on_to_no_memory) {
  const DeviceScope on("/job:ps");
  torch::Tensor tensor = torch::ones({1000});
  const torch::Storage storage = tensor.storage();
  tensor.reset();
  EXPECT_EQ(storage.use_count(), 1);
}

TEST(DeviceScope, pins_stay_when_parameters_move) {
  nn::Linear linear = [] {
    const DeviceScope on("/job:ps/task:1");
    return nn::Linear(3, 2);
  }();
  Parameters parameters(*linear);
  parameters.move([](int64_t elements, const torch::TensorOptions& options) {
    return torch::zeros({elements}, options);
  });
  linear->to(torch::kFloat64);
  EXPECT_THAT(places_in(*linear), ElementsAre("/job:ps/task:1", "/job:ps/task:1"));
}

TEST(DeviceScope, of_a_whole_module_fills_in_what_is_not_said_inside) {
  nn::Module net;
  net.register_module("plain", nn::Linear(1, 1));
  {
    const DeviceScope on("/job:ps/task:1");
    net.register_module("pinned", nn::Linear(1, 1));
  }
  pin(net, "/job:ps/task:0/cpu:0");
  EXPECT_THAT(places_in(net), ElementsAre("/job:ps/task:0/device:CPU:0", "/job:ps/task:0/device:CPU:0",
                                          "/job:ps/task:1/device:CPU:0", "/job:ps/task:1/device:CPU:0"));
}

TEST(DeviceScope, refuses_what_is_no_place) {
  expect_error(ErrorKind::InvalidArgument, HasSubstr("jop"), [] { const DeviceScope on("/jop:ps"); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("names the job"),
               [] { const DeviceScope on("/task:1"); });
  EXPECT_EQ(place_of(nn::Linear(1, 1)->weight), "");
}

std::vector<std::optional<int>> servers_of_pins(const std::string& device, const std::string& cluster) {
  nn::Linear linear(1, 1);
  pin(*linear, device);
  const Parameters parameters(*linear);
  return pinned_servers(parameters, ClusterSpec::parse(cluster));
}

constexpr const char* kTwoServers = "worker|h:1;h:2,ps|h:3;h:4";

TEST(PinnedServers, are_those_that_the_scopes_name) {
  EXPECT_THAT(servers_of_pins("/job:ps/task:1", kTwoServers), ElementsAre(1, 1));
  EXPECT_THAT(servers_of_pins("/job:ps/replica:0/task:0/cpu:0", kTwoServers), ElementsAre(0, 0));
  EXPECT_THAT(servers_of_pins("/job:ps", kTwoServers), ElementsAre(std::nullopt, std::nullopt));
  for (const char* own : {"/cpu:0", "/gpu:1", "/"})
    EXPECT_THAT(servers_of_pins(own, "worker|h:1"), ElementsAre(std::nullopt, std::nullopt)) << own;
}

TEST(PinnedServers, that_are_not_there_are_named_with_parameter_and_scope) {
  const auto expect_refused = [](const char* device, const char* cluster, const char* why) {
    expect_error(ErrorKind::InvalidArgument,
                 AllOf(HasSubstr("parameter weight"), HasSubstr(device), HasSubstr(why)),
                 [&] { servers_of_pins(device, cluster); });
  };
  expect_refused("/job:ps/task:2", kTwoServers, "ps (tasks 0, 1)");
  expect_refused("/job:ps/task:0", "worker|h:1", "has worker (task 0)");
  expect_refused("/job:parameter_server/task:0", kTwoServers, "ps (tasks 0, 1)");
  expect_refused("/job:worker/task:0", kTwoServers, "cannot hold parameters");
  expect_refused("/job:ps/replica:1/task:0", kTwoServers, "replica:0");
  expect_refused("/job:ps/task:0/device:GPU:0", kTwoServers, "/cpu:0");
  nn::Linear linear(1, 1);
  pin(*linear, "/job:ps");
  const Parameters parameters(*linear);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("names no jobs"),
               [&] { pinned_servers(parameters, ClusterSpec()); });
}

void create_on(const char* scope, const char* device) {
  nn::Linear linear(1, 1);
  pin(*linear, scope);
  require_created_on(Parameters(*linear), torch::Device(device));
}

TEST(DeviceScope, of_the_device_that_trains_is_fine) {
  for (const char* scope : {"/cpu:0", "/cpu:*", "/", "/device:CPU:0", "/job:ps/task:0"})
    create_on(scope, "cpu");
  for (const char* scope : {"/gpu:1", "/gpu:*"}) create_on(scope, "cuda:1");
}

TEST(DeviceScope, of_another_device_than_the_one_that_trains_is_refused) {
  const auto expect_refused = [](const char* scope, const char* device, const char* why) {
    expect_error(
        ErrorKind::InvalidArgument,
        AllOf(HasSubstr("parameter weight"), HasSubstr(device), HasSubstr(why), HasSubstr("--device")),
        [&] { create_on(scope, device); });
  };
  expect_refused("/gpu:0", "cpu", "/device:GPU:0");
  expect_refused("/cpu:1", "cpu", "/device:CPU:1");
  expect_refused("/device:TPU:0", "cpu", "/device:TPU:0");
  expect_refused("/gpu:0", "cuda:1", "/device:GPU:0");
  expect_refused("/cpu:0", "cuda:0", "/device:CPU:0");
  if (!torch::cuda::is_available()) expect_refused("/gpu:0", "cpu", "finds no GPU here");
}

// Frozen parameters and buffers are parts of the model as well.
TEST(DeviceScope, is_looked_at_for_all_tensors_of_a_model) {
  nn::Sequential net(nn::Linear(2, 2), [] {
    const auto on = device("/gpu:0");
    return nn::BatchNorm1d(nn::BatchNorm1dOptions(2).affine(false));
  }());
  expect_error(ErrorKind::InvalidArgument, HasSubstr("1.running_mean"),
               [&] { require_created_on(Parameters(*net), torch::kCPU); });
}

}  // namespace
}  // namespace tutti::device_scope_test

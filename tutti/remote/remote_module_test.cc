// Tests both ends in one process, over a real connection. Two processes: tests/remote_test.cc.
#include "tutti/remote/remote_module.h"

#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/base/torch_compat.h"
#include "tutti/cluster/roles.h"
#include "tutti/kernels/same_kernels.h"
#include "tutti/remote/module_server.h"
#include "tutti/rpc/host.h"
#include "tutti/store/safetensors.h"

namespace tutti {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Tensors = std::vector<torch::Tensor>;

namespace nn = torch::nn;

// Contains everything that makes it hard to get the same bits.
nn::Sequential make_tail() {
  return nn::Sequential(nn::Functional([](torch::Tensor x) { return x.relu_(); }), nn::Dropout(0.3),
                        nn::Linear(8, 6), nn::BatchNorm1d(6),
                        nn::Dropout(nn::DropoutOptions(0.5).inplace(true)), nn::Linear(6, 1));
}

// Returns a copy of the module.
nn::Sequential twin_of(const nn::Sequential& net) {
  return nn::Sequential(std::dynamic_pointer_cast<nn::SequentialImpl>(net->clone()));
}

struct TwoToTwo : nn::Module {
  std::tuple<torch::Tensor, torch::Tensor, torch::Tensor> forward(const torch::Tensor& a,
                                                                  const torch::Tensor& b) {
    return {linear(a) * b, b.detach() * 2, a.argmax(1)};
  }
  nn::Linear linear = register_module("linear", nn::Linear(3, 3));
};

// Task worker/1 serves a module "part", which worker/0 calls.
class Pair {
 public:
  explicit Pair(const ServedModule& module, const OptimizerOptions& optimizer,
                const ps::GraphLimits& limits = {})
      : service_({"worker/1", {}}, limits) {
    service_.add("part", module, optimizer);
    service_.open();
  }

  const Context& context() const { return context_; }
  RemoteModule part() const { return {context_, "/job:worker/task:1", "part"}; }
  void kill() { host_.reset(); }

 private:
  static Context context_of(int port) {
    RunConfig config;
    config.output.log_level = "off";
    const auto cluster = ClusterSpec::parse(fmt::format("worker|127.0.0.1:1;127.0.0.1:{}", port));
    return {config, identity_in(cluster, {.job = "worker", .index = 0}, "the test")};
  }

  ps::ModuleService service_;
  std::unique_ptr<rpc::Host> host_ = std::make_unique<rpc::Host>(rpc::HostOptions{}, service_);
  const Context context_ = context_of(host_->port());
};

constexpr int kSteps = 10;
const OptimizerOptions kAdam = torch::optim::AdamOptions(0.01);

// Trains front and tail together, and returns the losses of all steps.
template <class Forward, class ZeroGrad, class Step>
std::vector<float> train(nn::Linear& front, const Forward& tail, const ZeroGrad& zero_grad,
                         const Step& step) {
  torch::manual_seed(7);
  Parameters parameters(*front);
  Optimizer optimizer(parameters.blocks(), kAdam);
  std::vector<float> losses;
  for (int i = 0; i < kSteps; ++i) {
    parameters.zero_grads();
    zero_grad();
    const torch::Tensor x = torch::randn({5, 4});
    const torch::Tensor hidden = torch::dropout(front(x), 0.2, true);
    const torch::Tensor loss = (tail(hidden) - x.sum(1, true)).square().mean();
    loss.backward();
    optimizer.step();
    step();
    losses.push_back(loss.item<float>());
  }
  return losses;
}

TEST(RemoteModule, trains_to_the_bits_of_both_halves_on_one_task) {
  const kernels::SameKernels same;  // those of the contexts of the pair
  torch::manual_seed(1);
  nn::Linear front(4, 8);
  nn::Sequential tail = make_tail();
  nn::Linear front_twin(std::dynamic_pointer_cast<nn::LinearImpl>(front->clone()));
  const nn::Sequential tail_twin = twin_of(tail);

  Parameters own(*tail);
  Optimizer own_optimizer(own.blocks(), kAdam);
  const auto losses = train(
      front, [&](const torch::Tensor& x) { return tail->forward(x); }, [&] { own.zero_grads(); },
      [&] { own_optimizer.step(); });
  const torch::Tensor next_draw = torch::rand({4});

  const Pair pair(make_served(tail_twin), kAdam);
  RemoteModule remote = pair.part();
  const auto remote_losses = train(
      front_twin, [&](const torch::Tensor& x) { return remote.forward({x}); }, [&] { remote.zero_grad(); },
      [&] { remote.step(); });
  EXPECT_EQ(remote_losses, losses);
  EXPECT_EQ(remote.sha256(), own.sha256());
  EXPECT_EQ(Parameters(*front_twin).sha256(), Parameters(*front).sha256());
  EXPECT_TRUE(torch::equal(torch::rand({4}), next_draw)) << "the generator goes on from where it was";
  const auto buffers = tail->named_buffers();
  for (const auto& [name, tensor] : remote.state()) {
    const torch::Tensor* buffer = buffers.find(name);
    EXPECT_TRUE(buffer == nullptr || torch::equal(tensor, *buffer)) << name;
  }
}

TEST(RemoteModule, agrees_under_autocast) {
  nn::Sequential tail(nn::Linear(4, 3), nn::Tanh());
  const nn::Sequential twin = twin_of(tail);
  const Pair pair(make_served(twin), kAdam);
  RemoteModule remote = pair.part();
  const torch::Tensor x = torch::randn({5, 4});
  const compat::AutocastScope autocast(torch::kCPU, torch::kBFloat16);
  const torch::Tensor there = remote.forward(x);
  EXPECT_EQ(there.scalar_type(), torch::kBFloat16);
  EXPECT_TRUE(torch::equal(there, tail->forward(x)));
}

TEST(RemoteModule, has_any_number_of_inputs_and_outputs) {
  const auto net = std::make_shared<TwoToTwo>();
  const auto twin = std::make_shared<TwoToTwo>();
  twin->linear = twin->replace_module(
      "linear", nn::Linear(std::dynamic_pointer_cast<nn::LinearImpl>(net->linear->clone())));
  const Pair pair(make_served(twin), kAdam);
  RemoteModule remote = pair.part();
  const torch::Tensor a = torch::randn({4, 3});  // needs no gradient
  const torch::Tensor b = torch::randn({4, 3}).requires_grad_();
  const Tensors out = remote.forward({a, b});
  ASSERT_EQ(out.size(), 3);
  const auto [product, twice, which] = net->forward(a, b);
  EXPECT_TRUE(torch::equal(out[0], product));
  EXPECT_TRUE(out[0].requires_grad());
  EXPECT_FALSE(out[1].requires_grad());
  EXPECT_EQ(out[2].scalar_type(), torch::kInt64);
  EXPECT_TRUE(torch::equal(out[2], which));
  (out[0] * out[1]).sum().backward();
  const torch::Tensor gradient = b.grad().clone();
  b.mutable_grad().reset();
  (product * twice).sum().backward();
  EXPECT_TRUE(torch::equal(gradient, b.grad()));
  EXPECT_FALSE(a.grad().defined());
  EXPECT_TRUE(torch::equal(twin->linear->weight.grad(), net->linear->weight.grad()));
  expect_error(ErrorKind::InvalidArgument, HasSubstr("does not take 1 tensors"), [&] { remote.forward(a); });
}

// A remote linear layer whose weights are ones, so that its gradients are easy to predict.
class RemoteLinear : public ::testing::Test {
 protected:
  RemoteLinear() {
    const torch::NoGradGuard no_grad;
    for (const torch::Tensor& parameter : linear_->parameters()) torch::Tensor(parameter).fill_(1);
  }
  torch::Tensor weight_gradient() const { return linear_->weight.grad(); }

  nn::Linear linear_{2, 1};
  Pair pair_{make_served(linear_), OptimizerOptions(torch::optim::SGDOptions(1.0))};
  RemoteModule remote_ = pair_.part();
};

TEST_F(RemoteLinear, gets_gradients_though_no_input_needs_any) {
  remote_.forward(torch::ones({3, 2})).sum().backward();
  EXPECT_TRUE(torch::equal(weight_gradient(), torch::full({1, 2}, 3.0)));
  remote_.step(0.5);
  EXPECT_TRUE(torch::equal(linear_->weight.detach(), torch::full({1, 2}, -0.5)));
  remote_.zero_grad();
  EXPECT_TRUE(torch::equal(weight_gradient(), torch::zeros({1, 2})));
}

TEST_F(RemoteLinear, takes_several_forwards_before_a_backward_in_any_order) {
  const torch::Tensor first = remote_.forward(torch::ones({1, 2}));
  const torch::Tensor second = remote_.forward(torch::full({1, 2}, 10.0));
  first.backward();
  EXPECT_TRUE(torch::equal(weight_gradient(), torch::full({1, 2}, 1.0)));
  second.backward();
  EXPECT_TRUE(torch::equal(weight_gradient(), torch::full({1, 2}, 11.0)));
  const torch::Tensor x = torch::ones({1, 2}).requires_grad_();
  (remote_.forward(x) + remote_.forward(x) + remote_.forward(torch::cat({x, x}))).sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), torch::full({1, 2}, 6.0)));
}

TEST_F(RemoteLinear, goes_backward_in_another_thread) {
  const torch::Tensor y = remote_.forward(torch::ones({1, 2}));
  std::thread([&] { y.backward(); }).join();
  EXPECT_TRUE(torch::equal(weight_gradient(), torch::ones({1, 2})));
}

TEST_F(RemoteLinear, goes_backward_twice_where_the_graph_is_retained) {
  const torch::Tensor y = remote_.forward(torch::ones({1, 2}));
  y.backward({}, /*retain_graph=*/true);
  y.backward();
  EXPECT_TRUE(torch::equal(weight_gradient(), torch::full({1, 2}, 2.0)));
  expect_error(ErrorKind::InvalidArgument, HasSubstr("retain_graph"), [&] { y.backward(); });
}

TEST_F(RemoteLinear, leaves_the_parameters_alone_where_other_gradients_are_asked_for) {
  const torch::Tensor x = torch::ones({1, 2}).requires_grad_();
  const Tensors found = torch::autograd::grad({remote_.forward(x)}, {x});
  EXPECT_TRUE(torch::equal(found.at(0), torch::ones({1, 2})));
  EXPECT_TRUE(torch::equal(weight_gradient(), torch::zeros({1, 2})));
}

TEST_F(RemoteLinear, has_no_gradients_of_gradients) {
  const torch::Tensor x = torch::ones({1, 2}).requires_grad_();
  const torch::Tensor y = remote_.forward(x);
  expect_error(ErrorKind::Unimplemented, HasSubstr("create_graph"),
               [&] { torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true); });
}

TEST_F(RemoteLinear, names_the_task_whose_module_fails) {
  const torch::Tensor y = remote_.forward(torch::ones({1, 2}));
  expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("worker/1: forward"), HasSubstr("mat1")), [&] {
    remote_.forward(torch::ones({1, 3}));
  });
  y.backward();
  EXPECT_TRUE(torch::equal(weight_gradient(), torch::ones({1, 2}))) << "the connection is as good as before";
}

TEST_F(RemoteLinear, is_named_when_it_is_not_there) {
  const auto make = [&](const char* device, const char* name) {
    return [this, device, name] { RemoteModule(pair_.context(), device, name); };
  };
  expect_error(ErrorKind::InvalidArgument, HasSubstr("did you mean 'part'?"),
               make("/job:worker/task:1", "prat"));
  expect_error(ErrorKind::InvalidArgument, HasSubstr("tasks 0 to 1"), make("/job:worker/task:2", "part"));
  expect_error(ErrorKind::InvalidArgument, HasSubstr("ps"), make("/job:ps/task:0", "part"));
  expect_error(ErrorKind::InvalidArgument, HasSubstr("does not name a single task"),
               make("/job:worker", "part"));
  expect_error(ErrorKind::InvalidArgument, HasSubstr("CPU"), make("/job:worker/task:1/gpu:0", "part"));
  const Context alone{RunConfig{}, Identity{}};
  expect_error(ErrorKind::InvalidArgument, HasSubstr("--cluster_spec"),
               [&] { RemoteModule(alone, "/job:worker/task:1", "part"); });
}

TEST(RemoteModuleState, goes_into_a_checkpoint_and_back) {
  torch::manual_seed(1);
  const TestFolder folder;
  const Pair pair(make_served(make_tail()), kAdam);
  RemoteModule remote = pair.part();
  const torch::Tensor x = torch::randn({5, 8});
  const auto step = [&] {
    torch::manual_seed(3);
    remote.zero_grad();
    remote.forward(x.clone()).square().sum().backward();
    remote.step();
  };
  step();
  store::write_safetensors(folder / "tail.safetensors", remote.state());
  step();
  const std::string expected = remote.sha256();
  remote.load(store::SafetensorsFile(folder / "tail.safetensors").read_all());
  EXPECT_NE(remote.sha256(), expected);
  step();
  EXPECT_EQ(remote.sha256(), expected);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("worker/1: load: the state has no adam/steps"),
               [&] { remote.load({}); });
  EXPECT_EQ(remote.sha256(), expected);
}

TEST(RemoteModuleMode, is_that_of_the_client) {
  const Pair pair(make_served(make_tail()), kAdam);
  RemoteModule remote = pair.part();
  const torch::Tensor x = torch::randn({5, 8});
  remote.eval();
  EXPECT_TRUE(torch::equal(remote.forward(x.clone()), remote.forward(x.clone())));
  remote.train();
  EXPECT_FALSE(torch::equal(remote.forward(x.clone()), remote.forward(x.clone())));
}

// There is room for one graph: each forward would be refused if the previous graph were still kept.
TEST(RemoteModuleGraphs, are_kept_no_longer_than_somebody_may_need_them) {
  const Pair pair(make_served(nn::Linear(2, 1)), kAdam, {.graphs = 1});
  RemoteModule remote = pair.part();
  const torch::Tensor x = torch::ones({1, 2});
  remote.forward(x).backward();
  torch::Tensor y = remote.forward(x);
  y.reset();
  y = remote.forward(x).detach();
  {
    const torch::NoGradGuard no_grad;
    for (int i = 0; i < 3; ++i) y = remote.forward(x);
  }
  y = remote.forward(x);
  expect_error(ErrorKind::Overloaded, HasSubstr("NoGradGuard"), [&] { remote.forward(x); });
  y.backward();
}

TEST(RemoteModuleLoss, of_the_task_between_forward_and_backward_is_named) {
  Pair pair(make_served(nn::Linear(2, 1)), kAdam);
  RemoteModule remote = pair.part();
  const torch::Tensor y = remote.forward(torch::ones({1, 2}));
  pair.kill();
  expect_error(ErrorKind::PeerLost, HasSubstr("worker/1 (127.0.0.1:"), [&] { y.backward(); });
  expect_error(ErrorKind::PeerLost, HasSubstr("another RemoteModule"), [&] {
    remote.forward(torch::ones({1, 2}));
  });
}

}  // namespace
}  // namespace tutti

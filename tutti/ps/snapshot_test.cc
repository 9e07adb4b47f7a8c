// Takes snapshots of two servers while other workers push: each update has to be on both servers or on none.
#include <array>
#include <future>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tutti/base/test_errors.h"
#include "tutti/cluster/roles.h"
#include "tutti/ps/client.h"
#include "tutti/ps/service.h"
#include "tutti/ps/wire.h"
#include "tutti/rpc/host.h"

namespace tutti::ps {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kHalf = 16;  // elements per server

struct Vector : torch::nn::Module {
  Vector() { register_parameter("vector", torch::zeros({2 * kHalf})); }
};

// Two servers with half of the parameters each, and two workers. The optimiser is SGD with rate 1.
class SnapshotOfTwo : public ::testing::Test {
 protected:
  struct Worker {
    explicit Worker(const Context& of)
        : context(of),
          parameters(net),
          client(context, Group::unconnected(context), parameters, placement(), nullptr) {
      client.connect();
    }
    Placement placement() const {
      return {parameters, 2, {PlacementRule::Kind::Split, kHalf * static_cast<int64_t>(sizeof(float))}};
    }
    Client::Applied push(double gradient) {
      const std::vector<torch::Tensor> all = {torch::full_like(values(), gradient)};
      return client.push_asynchronous({.gradients = all, .results = {}, .examples = 1}, {values()}, {});
    }
    torch::Tensor values() const { return parameters.blocks().front().values.detach(); }

    const Context& context;
    Vector net;
    Parameters parameters;
    Client client;
  };

  Context context_of(int rank) const {
    RunConfig config;
    config.output.log_level = "off";
    config.training.strategy = "ps-async";
    config.network.timeout = timeout_;
    const auto cluster = ClusterSpec::parse(fmt::format(
        "ps|127.0.0.1:{};127.0.0.1:{},worker|127.0.0.1:1;127.0.0.1:2", hosts_[0]->port(), hosts_[1]->port()));
    return {config, identity_in(cluster, {.job = "worker", .index = rank}, "the test")};
  }
  void begin(Worker& chief, int64_t staleness = -1) const {
    chief.client.begin({.staleness = staleness, .optimizer = torch::optim::SGDOptions(1.0)}, {}, {}, plan_);
    chief.client.join(plan_);
  }
  int64_t step_of(size_t server) {
    return service_[server].serve({99, Json::object(), ""}, "state", {}).head.at("step").get<int64_t>();
  }

  const std::vector<std::string> plan_ = {"a vector"};
  double timeout_ = 60;
  std::array<Service, 2> service_ = {Service(Log(LogLevel::Off)), Service(Log(LogLevel::Off))};
  const std::array<std::unique_ptr<rpc::Host>, 2> hosts_ = {
      std::make_unique<rpc::Host>(rpc::HostOptions{}, service_[0]),
      std::make_unique<rpc::Host>(rpc::HostOptions{}, service_[1])};
};

// A worker that pushes to one server at a time, whenever the test says so.
class SlowWorker {
 public:
  SlowWorker(const std::array<std::unique_ptr<rpc::Host>, 2>& hosts, const std::vector<std::string>& plan) {
    for (const auto& host : hosts)
      channels_.push_back(std::make_unique<rpc::Channel>(
          "127.0.0.1:" + std::to_string(host->port()), rpc::ChannelOptions{.hello = {{"task", "worker/1"}}}));
    for (const auto& channel : channels_)
      run_ =
          text_in(channel->call("join", {{{"rank", 1}, {"plan", plan}, {"patience", 1000}}, {}}).head, "run");
  }
  void push_to(size_t server) {
    const torch::Tensor gradient = torch::full({kHalf}, -1.0);
    channels_[server]->call("push", {{{"run", run_}, {"patience", 60000}}, pieces_of({gradient})});
  }

 private:
  std::vector<std::unique_ptr<rpc::Channel>> channels_;
  std::string run_;
};

TEST_F(SnapshotOfTwo, has_no_half_of_an_update_and_names_whose_is_late) {
  timeout_ = 1;
  const Context context = context_of(0);
  Worker chief(context);
  begin(chief);
  SlowWorker slow(hosts_, plan_);
  slow.push_to(0);
  expect_error(ErrorKind::Timeout, AllOf(HasSubstr("worker/1"), HasSubstr("update")),
               [&] { chief.client.snapshot(); });
  slow.push_to(1);
  EXPECT_EQ(chief.client.snapshot().step, 1);
  EXPECT_TRUE(torch::equal(chief.values(), torch::ones({2 * kHalf})));
  // Updates are no longer held back.
  slow.push_to(0);
}

TEST_F(SnapshotOfTwo, has_the_update_of_a_worker_that_waits_for_the_slowest) {
  const std::array contexts = {context_of(0), context_of(1)};
  Worker chief(contexts[0]);
  begin(chief, 0);
  Worker fast(contexts[1]);
  fast.client.join(plan_);
  auto ahead = std::async(std::launch::async, [&] { return fast.push(-1); });
  while (step_of(0) == 0) std::this_thread::yield();
  EXPECT_EQ(chief.client.snapshot().step, 1);
  EXPECT_TRUE(torch::equal(chief.values(), torch::ones({2 * kHalf})));
  chief.push(-1);
  EXPECT_EQ(ahead.get().now, 2);
  // The result contains the update that it waited for.
  EXPECT_TRUE(torch::equal(fast.values(), torch::full({2 * kHalf}, 2.0)));
}

}  // namespace
}  // namespace tutti::ps

// The program of halves_test: one network in two halves, on one task or on two, of which worker/1 serves the
// second half. Prints the loss of every step and the hashes of both halves.
#include <csignal>
#include <cstdio>
#include <functional>

#include <fmt/format.h>
#include <torch/torch.h>

#include "tutti/base/config.h"
#include "tutti/base/environment.h"
#include "tutti/base/error.h"
#include "tutti/cluster/context.h"
#include "tutti/comm/collectives.h"
#include "tutti/params/optimizer.h"
#include "tutti/params/parameters.h"
#include "tutti/remote/module_server.h"
#include "tutti/remote/remote_module.h"
#include "tutti/train/distributed_optimizer.h"
#include "tutti/train/loop.h"
#include "tutti/train/snapshot.h"
#include "tutti/transport/inproc/inproc.h"

namespace halves_program {
namespace {

namespace nn = torch::nn;

const tutti::OptimizerOptions kAdam = torch::optim::AdamOptions(1e-2);

struct Options {
  bool alone = false;
  int64_t die_at = -1;
};

struct Front : nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return dropout(torch::max_pool2d(torch::relu(conv(x)), 4).flatten(1));
  }
  nn::Conv2d conv = register_module("conv", nn::Conv2d(nn::Conv2dOptions(1, 4, 5).padding(2)));
  nn::Dropout dropout = register_module("dropout", nn::Dropout(0.2));
};

struct Tail : nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor y = out(dropout(norm(torch::relu(dense(x)))));
    if (y.requires_grad() && ++calls == die_at) {
      y.register_hook([](const torch::Tensor&) { std::raise(SIGKILL); });
    }
    return y;
  }
  nn::Linear dense = register_module("dense", nn::Linear(4 * 7 * 7, 32));
  nn::BatchNorm1d norm = register_module("norm", nn::BatchNorm1d(32));
  nn::Dropout dropout = register_module("dropout", nn::Dropout(0.5));
  nn::Linear out = register_module("out", nn::Linear(32, 10));
  int64_t calls = 0;
  int64_t die_at = -1;
};

// The second half, in this task or in another one.
struct Second {
  std::function<torch::Tensor(const torch::Tensor&)> forward;
  std::function<void()> zero_grad;
  std::function<void()> step;
  std::function<std::string()> sha256;
};

void train(Front& front, const Second& second, int64_t steps) {
  tutti::Parameters parameters(front);
  tutti::Optimizer optimizer(parameters.blocks(), kAdam);
  torch::manual_seed(3);
  for (int64_t step = 0; step < steps; ++step) {
    const torch::Tensor x = torch::rand({8, 1, 28, 28});
    const torch::Tensor labels = torch::randint(10, {8}, torch::kInt64);
    parameters.zero_grads();
    second.zero_grad();
    const torch::Tensor loss = torch::cross_entropy_loss(second.forward(front.forward(x)), labels);
    loss.backward();
    parameters.collect_grads();
    optimizer.step();
    second.step();
    fmt::print("loss {:a}\n", loss.item<float>());
    std::fflush(stdout);
  }
  fmt::print("front {}\ntail {}\n", parameters.sha256(), second.sha256());
}

std::unique_ptr<tutti::comm::Communicator> alone() {
  constexpr std::chrono::seconds kTimeout{60};
  auto transports = tutti::comm::inproc_transports(1, kTimeout);
  return std::make_unique<tutti::comm::Collectives>(std::move(transports.front()), kTimeout);
}

// The checkpoints of the first half have the state of the second.
void train_in_loop(const tutti::Context& context, Front& front, tutti::RemoteModule& tail) {
  tutti::Parameters parameters(front);
  tutti::DistributedOptimizer optimizer(context, parameters, kAdam, {.group = tutti::Group(alone())});
  tutti::Loop loop(context, parameters, optimizer);
  loop.state("tail", tutti::remote_state(tail));
  while (loop.goes_on()) {
    torch::manual_seed(static_cast<uint64_t>(loop.step()));
    const torch::Tensor x = torch::rand({8, 1, 28, 28});
    const torch::Tensor labels = torch::randint(10, {8}, torch::kInt64);
    optimizer.zero_grad();
    tail.zero_grad();
    const torch::Tensor loss = torch::cross_entropy_loss(tail.forward(front.forward(x)), labels);
    optimizer.backward(loss);
    optimizer.step();
    tail.step();
    fmt::print("step {} loss {:a}\n", loop.step(), loss.item<float>());
  }
  fmt::print("front {}\ntail {}\n", parameters.sha256(), tail.sha256());
}

void run(const tutti::Context& context, const Options& options) {
  torch::manual_seed(1);
  const auto front = std::make_shared<Front>();
  const auto tail = std::make_shared<Tail>();
  tail->die_at = options.die_at;
  if (options.alone) {
    tutti::Parameters parameters(*tail);
    tutti::Optimizer optimizer(parameters.blocks(), kAdam);
    train(*front,
          {[&](const torch::Tensor& x) { return tail->forward(x); }, [&] { parameters.zero_grads(); },
           [&] { optimizer.step(); }, [&] { return parameters.sha256(); }},
          context.config().training.steps);
  } else if (context.task().index == 1) {
    tutti::ModuleServer server(context);
    server.add("tail", tail, kAdam);
    server.join();
  } else {
    tutti::RemoteModule remote(context, "/job:worker/task:1", "tail");
    if (!context.config().checkpoints.logdir.empty()) {
      train_in_loop(context, *front, remote);
      remote.end();
      return;
    }
    train(*front,
          {[&](const torch::Tensor& x) { return remote.forward(x); }, [&] { remote.zero_grad(); },
           [&] { remote.step(); }, [&] { return remote.sha256(); }},
          context.config().training.steps);
    remote.end();
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Options options;
    tutti::RunConfig config;
    tutti::FlagSet set("Two halves of one network.");
    set.add("--alone", options.alone, "both halves here");
    set.add("--die-at", options.die_at, "the forward in whose backward the second half is killed");
    tutti::add_standard_flags(set, config);
    const auto environment = tutti::Environment::of_process();
    if (set.parse(argc, argv, environment)) return 0;
    const tutti::Context context(config, tutti::discover(config, environment));
    at::set_num_threads(context.threads());
    run(context, options);
    return 0;
  } catch (const tutti::Error& error) {
    fmt::print(stderr, "{}: {}\n", tutti::to_string(error.kind()), error.what());
    return tutti::exit_code(error.kind());
  }
}

}  // namespace halves_program

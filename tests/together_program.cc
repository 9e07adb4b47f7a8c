// What together_test starts: a small training with everything that makes it hard to get the same bits.
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <malloc.h>
#include <stdexcept>
#include <string>
#include <tutti/tutti.h>

#include <torch/torch.h>

namespace {

namespace nn = torch::nn;

// The network of the first example, with dropout.
struct Cnn : nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(conv1(x)), 2);
    x = torch::max_pool2d(torch::relu(conv2(x)), 2);
    return pred(dropout(torch::relu(dense(x.flatten(1)))));
  }
  nn::Conv2d conv1 = register_module("conv1", nn::Conv2d(nn::Conv2dOptions(1, 32, 5).padding(2)));
  nn::Conv2d conv2 = register_module("conv2", nn::Conv2d(nn::Conv2dOptions(32, 64, 5).padding(2)));
  nn::Linear dense = register_module("dense", nn::Linear(7 * 7 * 64, 500));
  nn::Dropout dropout = register_module("dropout", nn::Dropout(0.5));
  nn::Linear pred = register_module("pred", nn::Linear(500, 10));
};

struct Normed : nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(norm(conv(x))), 4);
    return pred(dropout(x.flatten(1)));
  }
  nn::Conv2d conv = register_module("conv", nn::Conv2d(nn::Conv2dOptions(1, 3, 3).padding(1)));
  nn::BatchNorm2d norm = register_module("norm", nn::BatchNorm2d(3));
  nn::Dropout dropout = register_module("dropout", nn::Dropout(0.3));
  nn::Linear pred = register_module("pred", nn::Linear(3 * 7 * 7, 10));
};

// The same result from one worker as from several, but for rounding: no dropout, and statistics over the
// whole batch.
struct Synced : nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    return pred(torch::max_pool2d(torch::relu(norm(conv(x))), 4).flatten(1));
  }
  nn::Conv2d conv = register_module("conv", nn::Conv2d(nn::Conv2dOptions(1, 3, 3).padding(1)));
  tutti::nn::SyncBatchNorm norm = register_module("norm", tutti::nn::SyncBatchNorm(3));
  nn::Linear pred = register_module("pred", nn::Linear(3 * 7 * 7, 10));
};

// 5,575 parameters.
struct Odd : nn::Module {
  torch::Tensor forward(torch::Tensor x) { return pred(torch::tanh(dense(x.flatten(1)))); }
  nn::Linear dense = register_module("dense", nn::Linear(28 * 28, 7));
  nn::Linear pred = register_module("pred", nn::Linear(7, 10));
};

// 15.9 million parameters, next to which all else is little.
struct Wide : nn::Module {
  torch::Tensor forward(torch::Tensor x) { return pred(torch::tanh(dense(x.flatten(1)))); }
  nn::Linear dense = register_module("dense", nn::Linear(28 * 28, 20000));
  nn::Linear pred = register_module("pred", nn::Linear(20000, 10));
};

// Of this process alone, in kilobytes, without what was freed and kept for later.
int64_t private_memory() {
  malloc_trim(0);
  std::ifstream status("/proc/self/status");
  const std::string name = "RssAnon:";
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name)) return std::stoll(line.substr(name.size()));
  }
  throw std::runtime_error("no RssAnon in /proc/self/status");
}

class SaySteps final : public tutti::Hook {
 public:
  void after_step(tutti::Training& training, const tutti::StepResult&) override {
    if (said_ || !training.context.is_chief() || training.step - training.first_step < 3) return;
    said_ = true;
    std::puts("under way");
    std::fflush(stdout);
  }

 private:
  bool said_ = false;
};

// An error of the program's own, on one worker.
class FailOnOne final : public tutti::Hook {
 public:
  explicit FailOnOne(int64_t at) : at_(at) {}
  void before_step(tutti::Training& training) override {
    if (training.context.rank() == 1 && training.step == at_) throw std::runtime_error("the disk is on fire");
  }

 private:
  const int64_t at_;
};

struct Options {
  std::string net = "odd";
  double clip_norm = 0;
  int64_t fail_at = -1;
  bool evaluate = false;
  bool only_chief = false;
  bool say_memory = false;
  std::string die_once;
  std::string device;
};

void die_once(const std::string& mark) {
  if (std::filesystem::exists(mark)) return;
  std::ofstream(mark) << "dead";
  std::raise(SIGKILL);
}

template <class Net>
std::shared_ptr<Net> make_net(const Options& options) {
  if (options.device.empty()) return std::make_shared<Net>();
  const tutti::DeviceScope on(options.device);
  return std::make_shared<Net>();
}

template <class Net>
void train(tutti::Context& ctx, const Options& options) {
  const auto digits = tutti::data::mnist("");
  tutti::Trainer trainer(ctx, make_net<Net>(options), torch::optim::AdamOptions(1e-3),
                         [](Net& net, const tutti::Batch& batch) {
                           return torch::cross_entropy_loss(net.forward(batch["image"]), batch["label"]);
                         },
                         {.clip_norm = options.clip_norm});
  trainer.add_hook(std::make_unique<FailOnOne>(options.fail_at));
  trainer.add_hook(std::make_unique<SaySteps>());
  trainer.fit(digits.train().shuffle());
  if (options.say_memory) fmt::print("private memory {}\n", private_memory());
  if (ctx.rank() == 1 && !options.die_once.empty()) die_once(options.die_once);
  // What counts is the chief's feed.
  const bool other_feed = ctx.rank() == 1 && !options.die_once.empty();
  if (options.only_chief && !ctx.is_chief()) return;
  if (options.evaluate)
    trainer.evaluate(other_feed ? digits.train() : digits.test(), {tutti::metrics::accuracy("label")});
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  tutti::Program program;
  program.add_flags = [&](tutti::FlagSet& flags) {
    flags.add_choice("--net", options.net, {"cnn", "normed", "odd", "synced", "wide"}, "which network");
    flags.add("--clip-norm", options.clip_norm, "largest norm of the gradient; 0: any");
    flags.add("--fail-at", options.fail_at, "the step at which rank 1 fails");
    flags.add("--evaluate", options.evaluate, "count the accuracy at the end");
    flags.add("--only-chief", options.only_chief, "the chief alone does that, by mistake");
    flags.add("--say-memory", options.say_memory, "print what the process has for itself, in kilobytes");
    flags.add("--die-once", options.die_once,
              "a file: rank 1 kills itself before it counts, unless the file is there, and has another feed");
    flags.add("--create-on", options.device, "the device scope around the network's creation");
  };
  return tutti::run(argc, argv, program, [&](tutti::Context& ctx) {
    if (options.net == "cnn") train<Cnn>(ctx, options);
    if (options.net == "normed") train<Normed>(ctx, options);
    if (options.net == "odd") train<Odd>(ctx, options);
    if (options.net == "synced") train<Synced>(ctx, options);
    if (options.net == "wide") train<Wide>(ctx, options);
  });
}

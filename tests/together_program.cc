// The program of together_test: a small training with everything that makes equal bits difficult.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <malloc.h>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <tutti/tutti.h>
#include <unistd.h>
#include <utility>

#include <torch/torch.h>

#include "examples/common/digits.h"
#include "tests/fault.h"
#include "tests/misfortune.h"
#include "tests/networks.h"

namespace together_program {
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

// Gives the same result with one worker as with several, except for rounding: no dropout, and statistics over
// the whole batch.
struct Synced : nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    return pred(torch::max_pool2d(torch::relu(norm(conv(x))), 4).flatten(1));
  }
  nn::Conv2d conv = register_module("conv", nn::Conv2d(nn::Conv2dOptions(1, 3, 3).padding(1)));
  tutti::nn::SyncBatchNorm norm = register_module("norm", tutti::nn::SyncBatchNorm(3));
  nn::Linear pred = register_module("pred", nn::Linear(3 * 7 * 7, 10));
};

// A network of 5,575 parameters.
struct Odd : nn::Module {
  torch::Tensor forward(torch::Tensor x) { return pred(torch::tanh(dense(x.flatten(1)))); }
  nn::Linear dense = register_module("dense", nn::Linear(28 * 28, 7));
  nn::Linear pred = register_module("pred", nn::Linear(7, 10));
};

// A network with a buffer of booleans.
struct Masked : nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    return pred(torch::tanh(dense(x.flatten(1))).masked_fill(mask, 0));
  }
  nn::Linear dense = register_module("dense", nn::Linear(28 * 28, 7));
  nn::Linear pred = register_module("pred", nn::Linear(7, 10));
  torch::Tensor mask = register_buffer("mask", torch::arange(7) == 3);
};

// A network of 15.9 million parameters, whose size dominates all other memory.
struct Wide : nn::Module {
  torch::Tensor forward(torch::Tensor x) { return pred(torch::tanh(dense(x.flatten(1)))); }
  nn::Linear dense = register_module("dense", nn::Linear(28 * 28, 20000));
  nn::Linear pred = register_module("pred", nn::Linear(20000, 10));
};

// Returns the private memory of this process in kilobytes, without memory that was freed but kept for reuse.
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
    if (said_ || training.step - training.first_step < 3) return;
    said_ = true;
    std::puts(training.context.is_chief() ? "under way" : "another worker too");
    std::fflush(stdout);
  }

 private:
  bool said_ = false;
};

// Throws an error of the program on one worker.
class FailOnOne final : public tutti::Hook {
 public:
  explicit FailOnOne(int64_t at) : at_(at) {}
  void before_step(tutti::Training& training) override {
    if (training.context.rank() == 1 && training.step == at_) throw std::runtime_error("the disk is on fire");
  }

 private:
  const int64_t at_;
};

// Changes the last bit of a weight of one worker after a step, as a processor does that computes wrongly.
class FlipBit final : public tutti::Hook {
 public:
  FlipBit(int64_t at, int64_t rank) : at_(at), rank_(rank) {}
  void after_step(tutti::Training& training, const tutti::StepResult& /*result*/) override {
    if (training.context.rank() != rank_ || training.step != at_) return;
    auto* const bytes = static_cast<char*>(training.parameters.trained()[0].tensor.data_ptr());
    *bytes = static_cast<char>(*bytes ^ 1);
  }

 private:
  const int64_t at_;
  const int64_t rank_;
};

// Lets one worker compute a gradient that is no number, from a loss that is one, in one step.
class BreakGradient final : public tutti::Hook {
 public:
  explicit BreakGradient(int64_t at) : at_(at) {}
  void before_step(tutti::Training& training) override {
    const int breaking = std::min(1, training.context.world() - 1);
    is_due_ = training.context.rank() == breaking && training.step == at_;
  }
  // The root of 0 is 0, but its derivative is infinite.
  torch::Tensor in(const torch::Tensor& loss) const { return is_due_ ? loss + torch::sqrt(loss * 0) : loss; }

 private:
  const int64_t at_;
  bool is_due_ = false;
};

// Kills the chief in the middle of the training.
class KillChief final : public tutti::Hook {
 public:
  explicit KillChief(int64_t at) : at_(at) {}
  void before_step(tutti::Training& training) override {
    if (!training.group.is_chief() || training.step != at_) return;
    const std::string mark = training.folder + "/killed";
    if (std::filesystem::exists(mark)) return;
    std::ofstream(mark) << "\n";
    std::raise(SIGKILL);
  }

 private:
  const int64_t at_;
};

// Kills the server, and then the other worker than the chief, once in a log directory.
class KillServerAndWorker final : public tutti::Hook {
 public:
  explicit KillServerAndWorker(int64_t at) : at_(at) {}
  void before_step(tutti::Training& training) override {
    if (training.group.is_chief() || training.step != at_) return;
    const std::string mark = training.context.config().checkpoints.logdir + "/killed";
    if (std::filesystem::exists(mark)) return;
    std::ofstream(mark) << "\n";
    kill(tutti::testing::server_beside_this(0), SIGKILL);
    std::raise(SIGKILL);
  }

 private:
  const int64_t at_;
};

class StopAt final : public tutti::Hook {
 public:
  explicit StopAt(int64_t step) : step_(step) {}
  void after_step(tutti::Training& training, const tutti::StepResult&) override {
    if (training.step == step_) training.stop_reason = "it has seen enough";
  }

 private:
  const int64_t step_;
};

// Prints a line of the run, once for all tasks.
class TellEvery final : public tutti::Hook {
 public:
  explicit TellEvery(int64_t steps) : steps_(steps) {}
  void after_step(tutti::Training& training, const tutti::StepResult&) override {
    if (training.due_once(steps_)) fmt::print("told by rank {}\n", training.context.rank());
  }

 private:
  const int64_t steps_;
};

// Changes the weights or the buffers, which only the optimiser and the model should do.
class Decay final : public tutti::Hook {
 public:
  explicit Decay(bool buffers) : buffers_(buffers) {}
  void before_step(tutti::Training& training) override {
    if (buffers_) {
      for (const torch::Tensor& vector : training.parameters.buffer_vectors()) vector.detach().mul_(0.99);
    } else {
      for (const tutti::Section& block : training.parameters.blocks()) block.values.data().mul_(0.99);
    }
  }

 private:
  const bool buffers_;
};

// Lets each step take so long, and notes when the chief has finished one, and with how many workers.
class NoteSteps final : public tutti::Hook {
 public:
  NoteSteps(const std::string& file, int64_t milliseconds)
      : file_(file, std::ios::app), pause_(milliseconds) {}
  void before_step(tutti::Training&) override { std::this_thread::sleep_for(pause_); }
  void after_step(tutti::Training& training, const tutti::StepResult&) override {
    if (!training.group.is_chief()) return;
    const std::chrono::duration<double> now = std::chrono::steady_clock::now().time_since_epoch();
    file_ << fmt::format("{:.4f} {} {}\n", now.count(), training.step, training.group.world) << std::flush;
  }

 private:
  std::ofstream file_;
  const std::chrono::milliseconds pause_;
};

// A mistake of the program that no comparison before the first step can detect.
class RateOfRank1 final : public tutti::Hook {
 public:
  explicit RateOfRank1(double rate) : rate_(rate) {}
  void before_step(tutti::Training& training) override {
    if (training.context.rank() == 1 && training.step == 3) training.optimizer.set_learning_rate(rate_);
  }

 private:
  const double rate_;
};

// Evaluates on test data periodically, as programs do.
class MeasureEvery final : public tutti::Hook {
 public:
  MeasureEvery(int64_t steps, std::function<double()> measure)
      : steps_(steps), measure_(std::move(measure)) {}
  void after_step(tutti::Training& training, const tutti::StepResult&) override {
    if (training.step % steps_ != 0) return;
    const double accuracy = measure_();
    if (training.context.is_chief()) fmt::print("accuracy {} after step {}\n", accuracy, training.step);
  }

 private:
  const int64_t steps_;
  const std::function<double()> measure_;
};

tutti::ElementwiseOptimizer lion(double beta2) {
  return {.name = "lion",
          .rate = 1e-3,
          .slots = {"exp_avg"},
          .numbers = {{"beta2", beta2}},
          .update = [beta2](const tutti::ElementwiseUpdate& u) {
            u.values.mul_(1 - u.rate * u.weight_decay);
            u.values.sub_((u.slots[0] * 0.9 + u.grads * 0.1).sign() * u.rate);
            u.slots[0].mul_(beta2).add_(u.grads, 1 - beta2);
          }};
}

struct Options {
  std::string net = "odd";
  std::string optimizer = "adam";
  bool frozen = false;
  double server_beta = 0.99;
  double clip_norm = 0;
  double clip_norm_here = 0;
  int64_t fail_at = -1;
  int64_t kill_at = -1;
  std::string misfortune;
  std::string dawdle;
  std::string hold;
  std::string fault;
  int64_t await_world = 0;
  int64_t flip_at = -1;
  int64_t flip_on = 1;
  int64_t break_gradient_at = -1;
  bool evaluate = false;
  bool evaluate_outside = false;
  bool validate_at_start = false;
  int64_t examples = 60000;
  bool other_labels = false;
  bool only_chief = false;
  bool here = false;
  int64_t stop_at = -1;
  bool decay = false;
  bool decay_buffers = false;
  int64_t measure_every = 0;
  int64_t tell_every = 0;
  int64_t validate_every = 0;
  double average = 0;
  double rate_of_rank_1 = 0;
  bool own_loop = false;
  bool fits_twice = false;
  bool splits = false;
  int64_t kill_both_at = -1;
  bool say_memory = false;
  std::string note_steps;
  int64_t step_ms = 0;
  std::string die_once;
  std::string device;
  std::string export_into;
};

constexpr int64_t kValidated = 300;  // examples
constexpr int64_t kTested = 1000;
constexpr int64_t kMeasuredAt = 5;  // a step
constexpr double kLeastGain = 0.3;  // of the loss, so that the training ends early

void die_once(const std::string& mark) {
  if (std::filesystem::exists(mark)) return;
  std::ofstream(mark) << "dead";
  std::raise(SIGKILL);
}

// A source of the same digits, with each label increased by one.
class OtherLabels final : public tutti::data::Source {
 public:
  explicit OtherLabels(tutti::data::Feed feed) : feed_(std::move(feed)) {}
  int64_t size() const override { return feed_.size(); }
  tutti::Batch read(std::span<const int64_t> examples) const override {
    const tutti::Batch batch = feed_.read(examples);
    return tutti::Batch({{"image", batch["image"]}, {"label", (batch["label"] + 1) % 10}});
  }

 private:
  const tutti::data::Feed feed_;
};

tutti::data::Feed with_other_labels(const tutti::data::Feed& feed) {
  return tutti::data::Feed(std::make_shared<OtherLabels>(feed));
}

// Momentum, in whose update a worker may be killed (Misfortune): with half of the values of a chunk written,
// or after the last chunk.
tutti::ElementwiseOptimizer mortal() {
  return {
      .name = "mortal", .rate = 0.05, .slots = {"velocity"}, .update = [](const tutti::ElementwiseUpdate& u) {
        static int64_t step = 0;
        static int chunk = 0;
        static int chunks = 0;  // in each step
        if (step != u.step) chunks = std::exchange(chunk, 0);
        step = u.step;
        u.slots[0].mul_(0.9).add_(u.grads);
        u.values.narrow(0, 0, u.values.numel() / 2)
            .sub_(u.slots[0].narrow(0, 0, u.values.numel() / 2) * u.rate);
        tutti::testing::Misfortune::is_within_update();
        const int64_t rest = u.values.numel() - u.values.numel() / 2;
        u.values.narrow(0, u.values.numel() / 2, rest)
            .sub_(u.slots[0].narrow(0, u.values.numel() / 2, rest) * u.rate);
        if (++chunk == chunks) tutti::testing::Misfortune::is_after_update();
      }};
}

tutti::OptimizerOptions optimizer_of(const tutti::Context& ctx, const Options& options) {
  std::vector<tutti::ParameterGroup> groups = {{.names = "*.bias", .weight_decay = 0},
                                               {.names = "pred.*", .rate = 0.3}};
  if (options.frozen) groups.push_back({.names = "pred.bias", .frozen = true});
  if (options.optimizer == "grouped") return {torch::optim::AdamWOptions(1e-3).weight_decay(0.1), groups};
  if (options.optimizer == "mortal") return mortal();
  if (options.optimizer == "momentum") return torch::optim::SGDOptions(0.05).momentum(0.9);
  if (options.optimizer == "lion") return {lion(0.99), groups};
  if (options.optimizer == "ftrl")
    return {tutti::FtrlOptions{.rate = 0.05, .l1 = 0.01, .l2_shrinkage = 0.001, .beta = 1}, groups};
  if (options.optimizer == "replicated")
    return tutti::ReplicatedOptimizer{.name = "whole", .make = [&](const std::vector<torch::Tensor>& all) {
                                        tutti::testing::Misfortune(options.misfortune).is_made(ctx);
                                        return std::make_unique<torch::optim::Adam>(
                                            all, torch::optim::AdamOptions(1e-3));
                                      }};
  return torch::optim::AdamOptions(1e-3);
}

template <class Net>
std::shared_ptr<Net> make_net(const Options& options) {
  if (options.device.empty()) return std::make_shared<Net>();
  const tutti::DeviceScope on(options.device);
  return std::make_shared<Net>();
}

void print_history(const tutti::Context& ctx, const tutti::History& history) {
  if (!ctx.is_chief()) return;
  for (const tutti::History::Row& row : history.rows)
    fmt::print("step {} epoch {} loss {} validation {}\n", row.step, row.epoch, row.loss.value_or(-1),
               nlohmann::json(row.validation).dump());
}

// With --evaluate-outside: evaluates on small batches, in which a worker may be killed, and prints the values
// on each worker.
class Measure {
 public:
  using Evaluate = std::function<std::map<std::string, double>(const tutti::metrics::List&,
                                                               const tutti::EvaluateOptions&)>;
  Measure(const tutti::Context& context, const tutti::Group& group, const Options& options, Evaluate evaluate)
      : context_(context), group_(group), options_(options), evaluate_(std::move(evaluate)) {}

  // The mean label, as a metric that counts the batches of this worker.
  tutti::metrics::MetricPtr counted(const std::string& name) const {
    return tutti::metrics::mean("label", [this, name, batch = std::make_shared<int64_t>(0)](
                                             const torch::Tensor&, const tutti::Batch& examples) {
      tutti::testing::Misfortune(options_.misfortune).counts(context_, group_, name, (*batch)++);
      return examples["label"].to(torch::kDouble);
    });
  }
  void operator()(const std::string& name) const {
    if (!options_.evaluate_outside) return;
    const auto values = evaluate_({tutti::metrics::accuracy("label"), counted(name)}, {.batch = kSmall});
    fmt::print("{}: {} {}\n", name, values.at("accuracy"), values.at("label"));
    std::fflush(stdout);
  }

 private:
  static constexpr int64_t kSmall = 20;

  const tutti::Context& context_;
  const tutti::Group& group_;
  const Options& options_;
  const Evaluate evaluate_;
};

// Trains as train() does with a Trainer, but in a loop of its own.
template <class Net>
void train_in_own_loop(tutti::Context& ctx, const Options& options) {
  const auto digits = example::digits("");
  const auto feed = digits.train().shuffle();
  const auto net = make_net<Net>(options);
  tutti::Parameters params(*net);
  tutti::DistributedOptimizer opt(ctx, params, optimizer_of(ctx, options), {.clip_norm = options.clip_norm});
  const tutti::data::Sampler sampler(feed.size(), {.seed = ctx.config().training.seed,
                                                   .lanes = opt.all_lanes(),
                                                   .batch = ctx.config().training.batch,
                                                   .drop_remainder = true});
  tutti::Loop loop(ctx, params, opt,
                   {.steps_per_epoch = sampler.steps_per_epoch(), .average = options.average});
  loop.add_hook(std::make_unique<KillChief>(options.kill_at));
  loop.add_hook(std::make_unique<tutti::testing::Misfortune>(options.misfortune));
  const Measure measure_as(
      ctx, opt.group(), options, [&](const tutti::metrics::List& list, const tutti::EvaluateOptions& how) {
        return loop.measure(tutti::make_trainable(net), digits.test().take(kTested), list, how);
      });
  tutti::testing::Misfortune(options.misfortune).begins(ctx);
  loop.add_hook(std::make_unique<tutti::testing::AwaitWorld>(options.await_world));
  loop.add_hook(std::make_unique<tutti::testing::Dawdle>(options.dawdle));
  loop.add_hook(std::make_unique<FlipBit>(options.flip_at, options.flip_on));
  loop.add_hook(std::make_unique<StopAt>(options.stop_at));
  loop.add_hook(std::make_unique<SaySteps>());
  if (options.decay || options.decay_buffers) loop.add_hook(std::make_unique<Decay>(options.decay_buffers));
  auto breaks = std::make_unique<BreakGradient>(options.break_gradient_at);
  const BreakGradient& gradient = *breaks;
  loop.add_hook(std::move(breaks));
  auto faults = std::make_unique<tutti::testing::Fault>(options.fault);
  tutti::testing::Fault& fault = *faults;
  loop.add_hook(std::move(faults));
  if (options.validate_every > 0) {
    loop.add_hook(tutti::hooks::early_stopping({.patience = 1, .min_delta = kLeastGain}));
    const auto loss = [](const torch::Tensor& prediction, const tutti::Batch& batch) {
      return torch::cross_entropy_loss(prediction, batch["label"]).to(torch::kDouble);
    };
    const auto measure = [&, loss, test = digits.test().take(kValidated)] {
      return loop.measure(tutti::make_trainable(net), test,
                          {tutti::metrics::accuracy("label"), tutti::metrics::mean("loss", loss)});
    };
    loop.validate_with({.measure = measure, .every_steps = options.validate_every});
  }
  std::vector<int64_t> examples;
  while (loop.goes_on()) {
    if (loop.batch() == kMeasuredAt) measure_as("inside");
    for (const int64_t lane : opt.lanes_of_step()) {
      sampler.examples(loop.batch(), lane, examples);
      const tutti::Batch batch = feed.read(examples);
      opt.zero_grad();
      const torch::Tensor prediction = fault.in(net->forward(batch["image"]));
      opt.backward(gradient.in(torch::cross_entropy_loss(prediction, batch["label"])), batch.size());
    }
    fault.after_lanes(opt.parameters());
    opt.step();
  }
  measure_as("after");
  measure_as("again");
  if (options.validate_every > 0) print_history(ctx, loop.history());
  if (!options.evaluate) return;
  for (const auto& [name, value] :
       loop.measure(tutti::make_trainable(net), digits.test(), {tutti::metrics::accuracy("label")}))
    fmt::print("{} of rank {} is {}\n", name, ctx.rank(), value);
}

template <class Net>
void train(tutti::Context& ctx, const Options& options) {
  if (options.own_loop) return train_in_own_loop<Net>(ctx, options);
  const auto digits = example::digits("");
  auto breaks = std::make_unique<BreakGradient>(options.break_gradient_at);
  auto faults = std::make_unique<tutti::testing::Fault>(options.fault);
  std::optional<tutti::Group> group;
  if (options.splits) group = tutti::connect(ctx).split(0);
  tutti::Trainer trainer(ctx, make_net<Net>(options), optimizer_of(ctx, options),
                         [&gradient = *breaks, &fault = *faults](Net& net, const tutti::Batch& batch) {
                           const torch::Tensor prediction = fault.in(net.forward(batch["image"]));
                           return gradient.in(torch::cross_entropy_loss(prediction, batch["label"]));
                         },
                         {.clip_norm = std::max(options.clip_norm, options.clip_norm_here),
                          .average = options.average,
                          .group = group});
  trainer.add_hook(std::make_unique<FailOnOne>(options.fail_at));
  trainer.add_hook(std::move(breaks));
  trainer.add_hook(std::move(faults));
  trainer.add_hook(std::make_unique<KillChief>(options.kill_at));
  trainer.add_hook(std::make_unique<tutti::testing::Misfortune>(options.misfortune));
  const Measure measure_as(ctx, trainer.group(), options,
                           [&](const tutti::metrics::List& list, const tutti::EvaluateOptions& how) {
                             return trainer.evaluate(digits.test().take(kTested), list, how);
                           });
  tutti::testing::Misfortune(options.misfortune).begins(ctx);
  measure_as("first");
  trainer.add_hook(std::make_unique<tutti::testing::AwaitWorld>(options.await_world));
  trainer.add_hook(std::make_unique<tutti::testing::Dawdle>(options.dawdle));
  trainer.add_hook(std::make_unique<tutti::testing::Hold>(options.hold));
  trainer.add_hook(std::make_unique<FlipBit>(options.flip_at, options.flip_on));
  if (options.stop_at >= 0) trainer.add_hook(std::make_unique<StopAt>(options.stop_at));
  if (options.rate_of_rank_1 > 0) trainer.add_hook(std::make_unique<RateOfRank1>(options.rate_of_rank_1));
  if (options.decay || options.decay_buffers)
    trainer.add_hook(std::make_unique<Decay>(options.decay_buffers));
  if (options.measure_every > 0) {
    trainer.add_hook(std::make_unique<MeasureEvery>(options.measure_every, [&] {
      const auto values = trainer.measure(digits.test().take(kTested), {tutti::metrics::accuracy("label")});
      const auto found = values.find("accuracy");
      return found == values.end() ? -1.0 : found->second;
    }));
  }
  trainer.add_hook(std::make_unique<TellEvery>(options.tell_every));
  if (!options.note_steps.empty())
    trainer.add_hook(std::make_unique<NoteSteps>(options.note_steps, options.step_ms));
  trainer.add_hook(std::make_unique<SaySteps>());
  tutti::FitOptions fit;
  if (options.validate_every > 0) {
    trainer.add_hook(tutti::hooks::early_stopping({.patience = 1, .min_delta = kLeastGain}));
    fit.validate = {.feed = digits.test().take(kValidated),
                    .metrics = {tutti::metrics::accuracy("label")},
                    .every_steps = options.validate_every};
  }
  if (options.validate_at_start) {
    fit.validate.metrics.push_back(measure_as.counted("start"));
    fit.validate.batch = 20;
    fit.validate.at_start = true;
  }
  trainer.add_hook(std::make_unique<KillServerAndWorker>(options.kill_both_at));
  const tutti::data::Feed feed = digits.train().take(options.examples);
  if (options.fits_twice) {
    trainer.fit(feed.shuffle());
    tutti::testing::Misfortune(options.misfortune).is_between_fits(ctx);
    measure_as("between");
  }
  const tutti::History history =
      trainer.fit((options.other_labels ? with_other_labels(feed) : feed).shuffle(), fit);
  measure_as("after");
  measure_as("again");
  if (options.validate_every > 0) print_history(ctx, history);
  if (options.say_memory) fmt::print("private memory {}\n", private_memory());
  if (ctx.rank() == 1 && !options.die_once.empty()) die_once(options.die_once);
  // Only the chief's feed matters.
  const bool other_feed = ctx.rank() == 1 && !options.die_once.empty();
  if (options.only_chief && !ctx.is_chief()) return;
  if (options.evaluate)
    trainer.evaluate(other_feed ? digits.train() : digits.test().take(kTested),
                     {tutti::metrics::accuracy("label")}, {.here = options.here});
  if (!options.export_into.empty()) {
    tutti::testing::Misfortune(options.misfortune).exports(ctx);
    fmt::print("rank {} exported {}\n", ctx.rank(), trainer.export_model(options.export_into, digits.test()));
  }
}

// A program that does not use tutti::run().
int own_context(bool is_told_to_stand_alone) {
  tutti::RunConfig config;
  config.compute.device = "cpu";
  try {
    const tutti::Context ctx =
        is_told_to_stand_alone ? tutti::Context(config, tutti::Identity()) : tutti::Context(config);
    fmt::print("rank {} of {}\n", ctx.rank(), ctx.world());
    return 0;
  } catch (const tutti::Error& error) {
    fmt::print("{}\n", error.what());
    return tutti::exit_code(error.kind());
  }
}

// Exports in a program that does not use tutti::run(), so that another one has to make the check.
int own_export(const std::string& folder) {
  tutti::RunConfig config;
  config.compute.device = "cpu";
  try {
    fmt::print("exported {}\n", tutti::export_model(tutti::Context(config), folder, "",
                                                    tutti::make_trainable(std::make_shared<Odd>()),
                                                    example::digits("").test()));
    return 0;
  } catch (const tutti::Error& error) {
    fmt::print("{}\n", error.what());
    return tutti::exit_code(error.kind());
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "";
  if (first == "own-export") return own_export(argv[2]);
  if (first == "own-context" || first == "lonely-context") return own_context(first == "lonely-context");
  Options options;
  tutti::Program program;
  program.add_flags = [&](tutti::FlagSet& flags) {
    flags.add_choice("--net", options.net,
                     {"cnn", "gpt", "lstm", "masked", "normed", "odd", "resnet", "synced", "wide"},
                     "which network");
    flags.add_choice("--optimizer", options.optimizer,
                     {"adam", "grouped", "lion", "ftrl", "momentum", "mortal", "replicated"},
                     "which optimiser");
    flags.add("--frozen", options.frozen, "one of its groups is frozen");
    flags.add("--server-beta", options.server_beta, "a number of lion on servers, by mistake; 0: no lion");
    flags.add("--clip-norm", options.clip_norm, "largest norm of the gradient; 0: any");
    flags.add("--clip-norm-here", options.clip_norm_here, "the same on this task alone, by mistake");
    flags.add("--fail-at", options.fail_at, "the step at which rank 1 fails");
    flags.add("--kill-at", options.kill_at, "the step at which the chief is killed, once in a log directory");
    flags.add("--await-world", options.await_world, "how many workers are awaited before the last step");
    flags.add("--dawdle", options.dawdle, "the steps are slow as long as this file exists");
    flags.add("--hold", options.hold,
              "no step is made as long as this file exists, but to change the workers");
    flags.add("--misfortune", options.misfortune, "what befalls which worker at which step");
    flags.add("--fault", options.fault, "which worker computes wrongly at which step");
    flags.add("--flip-at", options.flip_at, "the step after which a bit of a weight changes");
    flags.add("--flip-on", options.flip_on, "the rank where it does");
    flags.add("--break-gradient-at", options.break_gradient_at,
              "the step at which rank 1 has a gradient that is no number");
    flags.add("--evaluate", options.evaluate, "count the accuracy at the end");
    flags.add(
        "--evaluate-outside", options.evaluate_outside,
        "count the accuracy in small batches before, between and after the fits, or in and after the loop");
    flags.add("--validate-at-start", options.validate_at_start, "validate before the first step, too");
    flags.add("--examples", options.examples, "train on so many of the digits");
    flags.add("--other-labels", options.other_labels, "train on the digits with other labels");
    flags.add("--only-chief", options.only_chief, "the chief alone does that, by mistake");
    flags.add("--here", options.here, "who counts does so without the others");
    flags.add("--stop-at", options.stop_at, "the step after which a hook wants to end the training");
    flags.add("--decay", options.decay, "a hook makes the weights smaller before each step");
    flags.add("--decay-buffers", options.decay_buffers, "a hook makes the buffers smaller before each step");
    flags.add("--measure-every", options.measure_every,
              "a hook counts the accuracy after every so many steps");
    flags.add("--tell-every", options.tell_every, "one task prints a line after every so many steps");
    flags.add("--validate-every", options.validate_every,
              "validate after every so many steps, and end when the loss gets hardly better");
    flags.add("--average", options.average, "the decay of a moving average of the weights");
    flags.add("--rate-of-rank-1", options.rate_of_rank_1,
              "rank 1 has a learning rate of its own from step 3 on, by mistake");
    flags.add("--split", options.splits, "train with a group that is split from all workers");
    flags.add("--fits-twice", options.fits_twice, "train another time before");
    flags.add("--kill-both-at", options.kill_both_at,
              "the step at which the server and a worker are killed, once");
    flags.add("--own-loop", options.own_loop, "train in a loop of its own");
    flags.add("--say-memory", options.say_memory, "print what the process has for itself, in kilobytes");
    flags.add("--note-steps", options.note_steps, "a file for the times of all steps");
    flags.add("--step-ms", options.step_ms, "the pause in each step then");
    flags.add("--die-once", options.die_once,
              "a file: rank 1 kills itself before it counts, unless the file is there, and has another feed");
    flags.add("--export-into", options.export_into, "export the model at the end, into this folder");
    flags.add("--create-on", options.device, "the device scope around the network's creation");
    // Like data, this flag is local to the task, and its contents are compared.
    flags.scope(tutti::FlagScope::Local, {"--other-labels", "--note-steps", "--step-ms", "--clip-norm-here"});
  };
  program.optimizers = [&] {
    std::vector<tutti::ElementwiseOptimizer> known;
    if (options.server_beta > 0) known.push_back(lion(options.server_beta));
    return known;
  };
  return tutti::run(argc, argv, program, [&](tutti::Context& ctx) {
    if (options.net == "cnn") train<Cnn>(ctx, options);
    if (options.net == "gpt") train<tutti::testing::TokenGpt>(ctx, options);
    if (options.net == "lstm") train<tutti::testing::Lstm>(ctx, options);
    if (options.net == "resnet") train<tutti::testing::ResNet>(ctx, options);
    if (options.net == "normed") train<Normed>(ctx, options);
    if (options.net == "masked") train<Masked>(ctx, options);
    if (options.net == "odd") train<Odd>(ctx, options);
    if (options.net == "synced") train<Synced>(ctx, options);
    if (options.net == "wide") train<Wide>(ctx, options);
  });
}

}  // namespace together_program

// Compares training the MNIST network with the Trainer, with a hand-written loop against LibTorch, and with
// PyTorch from Python: one core each, alternating, in one run. Prints Markdown.
//   bench_train_step                         all sides
//   bench_train_step --side trainer-fp32     one side, for the parent or a profiler
#include <chrono>
#include <filesystem>
#include <malloc.h>
#include <string>

#include <fmt/format.h>
#include <torch/torch.h>

#include "bench/mnist_net.h"
#include "bench/sides.h"
#include "tutti/base/torch_compat.h"
#include "tutti/tutti.h"

namespace {

using bench::MnistNet;
using Clock = std::chrono::steady_clock;

constexpr int64_t kBatch = 50;
constexpr int64_t kWarmUp = 20;
constexpr int64_t kSteps = 120;
constexpr int kRounds = 7;

// Measures the speed over the steps after the warm-up.
class StepClock {
 public:
  void step() {
    if (++steps_ == kWarmUp) begin_ = Clock::now();
    if (steps_ == kWarmUp + kSteps) end_ = Clock::now();
  }
  double images_per_second() const {
    return static_cast<double>(kSteps * kBatch) / std::chrono::duration<double>(end_ - begin_).count();
  }

 private:
  int64_t steps_ = 0;
  Clock::time_point begin_;
  Clock::time_point end_;
};

class ClockHook final : public tutti::Hook {
 public:
  explicit ClockHook(StepClock& clock) : clock_(clock) {}
  void after_step(tutti::Training&, const tutti::StepResult&) override { clock_.step(); }

 private:
  StepClock& clock_;
};

// Trains as a user would, with everything that is on by default: feed, hooks, guard, progress.
int trainer(const std::string& precision) {
  std::vector<std::string> words = {"bench",       "--device", "cpu",         "--threads", "1",
                                    "--precision", precision,  "--log-level", "error"};
  std::vector<char*> arguments;
  arguments.reserve(words.size());
  for (std::string& word : words) arguments.push_back(word.data());
  tutti::Program program;
  program.defaults.batch = kBatch;
  program.defaults.steps = kWarmUp + kSteps;
  return tutti::run(static_cast<int>(arguments.size()), arguments.data(), program, [](tutti::Context& ctx) {
    tutti::Trainer trainer(ctx, std::make_shared<MnistNet>(), torch::optim::AdamOptions(1e-4),
                           [](MnistNet& net, const tutti::Batch& batch) {
                             return torch::cross_entropy_loss(net.forward(batch["image"]), batch["label"]);
                           });
    StepClock clock;
    trainer.add_hook(std::make_unique<ClockHook>(clock));
    trainer.fit(tutti::data::mnist("").train().take(10000).shuffle());
    bench::print_measured(clock.images_per_second());
  });
}

struct LoopOptions {
  bool bfloat16 = false;
  bool channels_last = false;
  bool keep_freed_memory = false;
};

// Trains without Tutti: examples in memory, a shuffled index, a batch, a step.
int loop(const LoopOptions& options) {
  if (options.keep_freed_memory) {
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, 512 << 20);
    mallopt(M_TOP_PAD, 64 << 20);
  }
  at::set_num_threads(1);
  torch::manual_seed(1);
  std::vector<int64_t> first(10000);
  std::iota(first.begin(), first.end(), 0);
  const tutti::Batch all = tutti::data::mnist("").train().read(first);
  const torch::Tensor bytes = (all["image"] * 255).to(torch::kUInt8);
  MnistNet net;
  if (options.channels_last) {
    for (auto& parameter : net.parameters()) {
      if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(torch::MemoryFormat::ChannelsLast));
    }
  }
  torch::optim::Adam optimizer(net.parameters(), torch::optim::AdamOptions(1e-4));
  StepClock clock;
  torch::Tensor order;
  for (int64_t step = 0; step < kWarmUp + kSteps; ++step) {
    const int64_t at = step * kBatch % 10000;
    if (at == 0) order = torch::randperm(10000);
    const torch::Tensor picked = order.narrow(0, at, kBatch);
    torch::Tensor image = bytes.index_select(0, picked).to(torch::kFloat32).div_(255);
    if (options.channels_last) image = image.contiguous(torch::MemoryFormat::ChannelsLast);
    const torch::Tensor label = all["label"].index_select(0, picked);
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      const tutti::compat::AutocastScope autocast(
          torch::kCPU, options.bfloat16 ? std::optional(torch::kBFloat16) : std::nullopt);
      loss = torch::cross_entropy_loss(net.forward(image), label);
    }
    loss.backward();
    optimizer.step();
    if (!std::isfinite(loss.item<double>())) return 1;
    clock.step();
  }
  bench::print_measured(clock.images_per_second());
  return 0;
}

int run_side(const std::string& side) {
  bench::pin_to_one_core();
  if (side == "trainer-fp32") return trainer("fp32");
  if (side == "trainer-bf16") return trainer("bf16");
  if (side == "loop-fp32") return loop({});
  if (side == "loop-bf16") return loop({.bfloat16 = true});
  if (side == "tuned-fp32") return loop({.channels_last = true, .keep_freed_memory = true});
  if (side == "tuned-bf16") return loop({.bfloat16 = true, .channels_last = true, .keep_freed_memory = true});
  fmt::print(stderr, "no such side: {}\n", side);
  return 2;
}

std::vector<bench::Side> sides(const std::string& self) {
  std::vector<bench::Side> all;
  for (const char* side :
       {"trainer-fp32", "loop-fp32", "tuned-fp32", "trainer-bf16", "loop-bf16", "tuned-bf16"}) {
    all.push_back({side, {self, "--side", side}});
  }
  const std::string peer = (bench::folder() / "peers/train_step.py").string();
  for (const char* precision : {"fp32", "bf16"}) {
    all.push_back({std::string("pytorch-") + precision, {"/usr/bin/python3", peer, precision}});
  }
  return all;
}

void print_report(const std::map<std::string, bench::Measured>& all) {
  std::map<std::string, double> speed;
  std::map<std::string, double> memory;
  for (const auto& [name, measured] : all) {
    speed[name] = measured.per_second;
    memory[name] = measured.peak_mebibytes;
  }
  fmt::print(
      "## Training step\n\nThe MNIST network (conv 5x5x32, conv 5x5x64, 500, 10), Adam, batches of {}, one "
      "core each; median of {} alternating rounds of {} steps (`./dev bench train_step`).\n\n",
      kBatch, kRounds, kSteps);
  fmt::print("| | images/s | peak memory, MiB |\n|---|---|---|\n");
  const std::pair<const char*, const char*> rows[] = {
      {"trainer-fp32", "Tutti's Trainer, fp32"},
      {"loop-fp32", "LibTorch loop by hand, fp32"},
      {"tuned-fp32", "the same with channels-last and malloc settings, fp32"},
      {"pytorch-fp32", "PyTorch from Python, fp32"},
      {"trainer-bf16", "Tutti's Trainer, bf16"},
      {"loop-bf16", "LibTorch loop by hand, bf16"},
      {"tuned-bf16", "the same with channels-last and malloc settings, bf16"},
      {"pytorch-bf16", "PyTorch from Python, bf16"}};
  for (const auto& [side, name] : rows) {
    if (!speed.contains(side)) {
      fmt::print("| {} | not here | |\n", name);
      continue;
    }
    fmt::print("| {} | {:.0f} | {:.0f} |\n", name, speed[side], memory[side]);
  }
  const auto ratio = [](std::map<std::string, double>& of, const char* a, const char* b) {
    return of.contains(a) && of.contains(b) ? fmt::format("{:.2f}", of[a] / of[b]) : std::string("not here");
  };
  fmt::print("\n| ratio | measured | to reach |\n|---|---|---|\n");
  fmt::print("| Trainer / loop by hand, fp32 | {} | 0.99 |\n", ratio(speed, "trainer-fp32", "loop-fp32"));
  fmt::print("| Trainer / tuned loop by hand, fp32 | {} | |\n", ratio(speed, "trainer-fp32", "tuned-fp32"));
  fmt::print("| Trainer / tuned loop by hand, bf16 | {} | |\n", ratio(speed, "trainer-bf16", "tuned-bf16"));
  fmt::print("| Trainer / PyTorch, fp32 | {} | 1.15 |\n", ratio(speed, "trainer-fp32", "pytorch-fp32"));
  fmt::print("| Trainer bf16 / PyTorch fp32 | {} | 2 (with AMX) |\n",
             ratio(speed, "trainer-bf16", "pytorch-fp32"));
  fmt::print("| Trainer / PyTorch, bf16 | {} | |\n", ratio(speed, "trainer-bf16", "pytorch-bf16"));
  fmt::print("| memory, Trainer / loop by hand, fp32 | {} | 1.1 |\n",
             ratio(memory, "trainer-fp32", "loop-fp32"));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--side") return run_side(argv[2]);
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  print_report(bench::measure(sides(self), kRounds));
  return 0;
}

// Compares training the MNIST network with the Trainer, with a hand-written loop against LibTorch, and with
// PyTorch from Python: one core each, alternating, in one run. Prints Markdown.
//   bench_train_step                         all sides, also with the distribution's LibTorch (./dev build
//   system) bench_train_step --side trainer-fp32     one side, for the parent or a profiler bench_train_step
//   --libtorch              the version of LibTorch
#include <filesystem>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include "bench/mnist_net.h"
#include "bench/sides.h"
#include "bench/step_clock.h"
#include "examples/common/digits.h"
#include "tutti/base/file.h"
#include "tutti/base/memory.h"
#include "tutti/base/torch_compat.h"
#include "tutti/tutti.h"

namespace {

using bench::MnistNet;

constexpr int64_t kBatch = 50;
constexpr int64_t kWarmUp = 20;
constexpr int64_t kSteps = 120;
constexpr int kRounds = 7;

// Trains as a user would, with everything that is on by default: feed, hooks, guard, progress.
int trainer(const std::string& precision) {
  std::vector<std::string> words = {"bench",       "--device", "cpu",         "--threads", "1",
                                    "--precision", precision,  "--log-level", "error"};
  std::vector<char*> arguments;
  arguments.reserve(words.size());
  for (std::string& word : words) arguments.push_back(word.data());
  tutti::Program program;
  program.defaults.training.batch = kBatch;
  program.defaults.training.steps = kWarmUp + kSteps;
  return tutti::run(static_cast<int>(arguments.size()), arguments.data(), program, [](tutti::Context& ctx) {
    tutti::Trainer trainer(ctx, std::make_shared<MnistNet>(), torch::optim::AdamOptions(1e-4),
                           [](MnistNet& net, const tutti::Batch& batch) {
                             return torch::cross_entropy_loss(net.forward(batch["image"]), batch["label"]);
                           });
    bench::StepClock clock(kWarmUp, kSteps);
    trainer.add_hook(std::make_unique<bench::ClockHook>(clock));
    trainer.fit(example::digits("").train().take(10000).shuffle());
    bench::print_measured(clock.steps_per_second() * kBatch);
  });
}

struct LoopOptions {
  bool bfloat16 = false;
  bool channels_last = false;
  bool tuned_heap = false;
};

// Trains without Tutti: examples in memory, a shuffled index, a batch, a step.
int loop(const LoopOptions& options) {
  if (options.tuned_heap) tutti::tune_heap();
  at::set_num_threads(1);
  torch::manual_seed(1);
  std::vector<int64_t> first(10000);
  std::iota(first.begin(), first.end(), 0);
  const tutti::Batch all = example::digits("").train().read(first);
  const torch::Tensor bytes = (all["image"] * 255).to(torch::kUInt8);
  MnistNet net;
  if (options.channels_last) {
    for (auto& parameter : net.parameters()) {
      if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(torch::MemoryFormat::ChannelsLast));
    }
  }
  torch::optim::Adam optimizer(net.parameters(), torch::optim::AdamOptions(1e-4));
  bench::StepClock clock(kWarmUp, kSteps);
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
  bench::print_measured(clock.steps_per_second() * kBatch);
  return 0;
}

int run_side(const std::string& side) {
  bench::pin_to_one_core();
  if (side == "trainer-fp32") return trainer("fp32");
  if (side == "trainer-bf16") return trainer("bf16");
  if (side == "loop-fp32") return loop({});
  if (side == "loop-bf16") return loop({.bfloat16 = true});
  if (side == "tuned-fp32") return loop({.channels_last = true, .tuned_heap = true});
  if (side == "tuned-bf16") return loop({.bfloat16 = true, .channels_last = true, .tuned_heap = true});
  fmt::print(stderr, "no such side: {}\n", side);
  return 2;
}

// A build of this program with one LibTorch.
struct Build {
  std::string program;
  std::string libtorch;  // its version
  std::optional<std::string> python = bench::pytorch_python(libtorch);

  std::string name_of(const std::string& side) const { return libtorch + " " + side; }
};

// Returns this program and, if it was built, the program with the distribution's LibTorch.
std::vector<Build> builds() {
  const auto self = std::filesystem::read_symlink("/proc/self/exe");
  const auto other = self.parent_path() / "../../build-system/bin" / self.filename();
  std::vector<Build> all = {{self.string(), TORCH_VERSION}};
  const std::string libtorch = bench::last_line_of({other.string(), "--libtorch"});
  if (!libtorch.empty() && libtorch != TORCH_VERSION) all.push_back({other.string(), libtorch});
  return all;
}

// Without AMX, a step in bf16 takes ten times as long as in fp32, so that it is not measured.
std::vector<std::string> precisions() {
  const bool amx = tutti::read_system_file("/proc/cpuinfo").find(" amx_bf16") != std::string::npos;
  return amx ? std::vector<std::string>{"fp32", "bf16"} : std::vector<std::string>{"fp32"};
}

std::vector<bench::Side> sides(const Build& build) {
  std::vector<bench::Side> all;
  const std::string peer = (bench::folder() / "peers/train_step.py").string();
  for (const std::string& precision : precisions()) {
    for (const char* kind : {"trainer-", "loop-", "tuned-"})
      all.push_back({build.name_of(kind + precision), {build.program, "--side", kind + precision}});
    all.push_back({build.name_of("pytorch-" + precision), {build.python.value_or("false"), peer, precision}});
  }
  return all;
}

using Figures = std::map<std::string, bench::Measured>;

std::string ratio(const Figures& all, const std::string& a, const std::string& b,
                  double bench::Measured::*figure = &bench::Measured::per_second) {
  if (!all.contains(a) || !all.contains(b)) return "not here";
  return fmt::format("{:.2f}", all.at(a).*figure / all.at(b).*figure);
}

void print_speeds(const std::vector<Build>& compared, const Figures& all) {
  fmt::print("|");
  for (const Build& build : compared)
    fmt::print(" | images/s, LibTorch {0} | peak memory, MiB", build.libtorch);
  fmt::print(" |\n|---|{}\n", fmt::join(std::vector<std::string>(compared.size(), "---|---|"), ""));
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
    fmt::print("| {}", name);
    for (const Build& build : compared) {
      const auto found = all.find(build.name_of(side));
      if (found == all.end()) {
        fmt::print(" | not here |");
      } else {
        fmt::print(" | {:.0f} | {:.0f}", found->second.per_second, found->second.peak_mebibytes);
      }
    }
    fmt::print(" |\n");
  }
}

void print_ratios(const std::vector<Build>& compared, const Figures& all) {
  fmt::print("\n| ratio");
  for (const Build& build : compared) fmt::print(" | LibTorch {}", build.libtorch);
  fmt::print(" | to reach |\n|---|{}---|\n",
             fmt::join(std::vector<std::string>(compared.size(), "---|"), ""));
  struct Row {
    const char* name;
    const char* a;
    const char* b;
    const char* to_reach;
  };
  constexpr Row kRows[] = {
      {"Trainer / loop by hand, fp32", "trainer-fp32", "loop-fp32", "0.99"},
      {"Trainer / tuned loop by hand, fp32", "trainer-fp32", "tuned-fp32", ""},
      {"Trainer / tuned loop by hand, bf16", "trainer-bf16", "tuned-bf16", ""},
      {"Trainer / PyTorch, fp32", "trainer-fp32", "pytorch-fp32", "1.15"},
      {"Trainer bf16 / PyTorch fp32", "trainer-bf16", "pytorch-fp32", "2 (with AMX)"},
      {"Trainer / PyTorch, bf16", "trainer-bf16", "pytorch-bf16", ""},
  };
  for (const Row& row : kRows) {
    fmt::print("| {}", row.name);
    for (const Build& build : compared)
      fmt::print(" | {}", ratio(all, build.name_of(row.a), build.name_of(row.b)));
    fmt::print(" | {} |\n", row.to_reach);
  }
  fmt::print("| memory, Trainer / loop by hand, fp32");
  for (const Build& build : compared) {
    fmt::print(" | {}", ratio(all, build.name_of("trainer-fp32"), build.name_of("loop-fp32"),
                              &bench::Measured::peak_mebibytes));
  }
  fmt::print(" | 1.1 |\n");
}

void print_report(const std::vector<Build>& compared, const Figures& all) {
  fmt::print(
      "## Training step\n\nThe MNIST network (conv 5x5x32, conv 5x5x64, 500, 10), Adam, batches of {}, one "
      "core each; median of {} alternating rounds of {} steps (`./dev bench train_step`). Each PyTorch has "
      "the LibTorch of its column. bf16 is measured only on processors with AMX.\n\n",
      kBatch, kRounds, kSteps);
  print_speeds(compared, all);
  print_ratios(compared, all);
  if (compared.size() < 2) return;
  for (const std::string& precision : precisions()) {
    const std::string side = "trainer-" + precision;
    fmt::print("\nTrainer, {}: LibTorch {} is {} times as fast as {}.\n", precision, compared[0].libtorch,
               ratio(all, compared[0].name_of(side), compared[1].name_of(side)), compared[1].libtorch);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--side") return run_side(argv[2]);
  if (argc == 2 && std::string(argv[1]) == "--libtorch") {
    fmt::print("{}\n", TORCH_VERSION);
    return 0;
  }
  const std::vector<Build> compared = builds();
  std::vector<bench::Side> all;
  for (const Build& build : compared) {
    for (bench::Side& side : sides(build)) all.push_back(std::move(side));
  }
  print_report(compared, bench::measure(all, kRounds));
  return 0;
}

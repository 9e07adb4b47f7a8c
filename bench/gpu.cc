// Compares training on a GPU with the Trainer, with a loop by hand against LibTorch, and with PyTorch from
// Python; runs several workers on one GPU; and measures sums that are made on a device. Prints Markdown.
//
//   bench_gpu                    everything, on the first GPU
//   bench_gpu --here             succeeds if there is a GPU
//   bench_gpu --side trainer     one side, for the parent or a profiler
#include <array>
#include <chrono>
#include <cmath>
#include <dlfcn.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include "bench/mnist_net.h"
#include "bench/sides.h"
#include "bench/step_clock.h"
#include "tutti/base/torch_compat.h"
#include "tutti/cluster/kernels.h"
#include "tutti/comm/reduce_on_device.h"
#include "tutti/tutti.h"

namespace {

using bench::MnistNet;
using Clock = std::chrono::steady_clock;

constexpr int64_t kExamples = 20000;
constexpr int64_t kWarmUp = 50;
constexpr int64_t kSteps = 300;
constexpr int64_t kLookEvery = 25;  // steps between looks at the loss, as often as Tutti's guard
constexpr int kRounds = 3;

// Every side makes these trainings, in this order.
struct Training {
  const char* precision;
  int64_t batch;
};
constexpr std::array<Training, 4> kTrainings = {{{"fp32", 50}, {"bf16", 50}, {"fp32", 1024}, {"bf16", 1024}}};

torch::Device device() { return torch::cuda::is_available() ? torch::kCUDA : torch::kCPU; }

// Memory that is not free on the GPU, in MiB: what LibTorch keeps for tensors, and the driver's own.
double gpu_mebibytes() {
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr) return 0;
  const auto ask = reinterpret_cast<int (*)(size_t*, size_t*)>(dlsym(driver, "cuMemGetInfo_v2"));
  size_t free = 0;
  size_t total = 0;
  if (ask == nullptr || ask(&free, &total) != 0) return 0;
  return static_cast<double>(total - free) / 1048576;
}

// Random examples: bytes, which the network turns into numbers on the GPU.
struct Examples {
  explicit Examples(torch::Device place)
      : images(torch::randint(0, 256, {kExamples, 1, 28, 28}, torch::kByte).to(place)),
        labels(torch::randint(0, 10, {kExamples}, torch::kLong).to(place)) {}
  torch::Tensor images;
  torch::Tensor labels;
};

torch::Tensor loss_of(MnistNet& net, const torch::Tensor& images, const torch::Tensor& labels) {
  return torch::cross_entropy_loss(net.forward(images.to(torch::kFloat).div(255)), labels);
}

// Trains as a user would, with everything that is on by default: feed, hooks, guard, progress.
double trainer(const Training& training, torch::Device place, const char* kernels) {
  std::vector<std::string> words = {"bench",       "--threads",        "2",
                                    "--precision", training.precision, "--log-level",
                                    "error",       "--kernels",        kernels};
  std::vector<char*> arguments;
  arguments.reserve(words.size());
  for (std::string& word : words) arguments.push_back(word.data());
  tutti::Program program;
  program.defaults.training.batch = training.batch;
  program.defaults.training.steps = kWarmUp + kSteps;
  bench::StepClock clock(kWarmUp, kSteps);
  const int status =
      tutti::run(static_cast<int>(arguments.size()), arguments.data(), program, [&](tutti::Context& ctx) {
        tutti::Trainer trainer(ctx, std::make_shared<MnistNet>(), torch::optim::AdamOptions(1e-4),
                               [](MnistNet& net, const tutti::Batch& batch) {
                                 return loss_of(net, batch["image"], batch["label"]);
                               });
        trainer.add_hook(std::make_unique<bench::ClockHook>(clock));
        const Examples all(place);
        const auto source = tutti::data::from_tensors({{"image", all.images}, {"label", all.labels}});
        trainer.fit(tutti::data::Feed(source).shuffle());
      });
  return status == 0 ? clock.steps_per_second() : 0;
}

// Trains without Tutti: examples in memory, a shuffled index, a batch in pinned memory, a step.
double loop(const Training& training, torch::Device place) {
  at::set_num_threads(2);
  torch::manual_seed(1);
  const Examples all(place);
  const bool bfloat16 = std::string(training.precision) == "bf16";
  MnistNet net;
  net.to(device());
  torch::optim::Adam optimizer(net.parameters(), torch::optim::AdamOptions(1e-4));
  const auto rows = [&](const torch::Tensor& of, const torch::Tensor& picked) {
    const torch::Tensor found = of.index_select(0, picked);
    if (place == device()) return found;
    return found.pin_memory().to(device(), /*non_blocking=*/true);
  };
  const int64_t steps_per_epoch = kExamples / training.batch;
  bench::StepClock clock(kWarmUp, kSteps);
  torch::Tensor order;
  for (int64_t step = 0; step < kWarmUp + kSteps; ++step) {
    const int64_t at = step % steps_per_epoch * training.batch;
    if (at == 0) order = torch::randperm(kExamples, torch::TensorOptions().dtype(torch::kLong).device(place));
    const torch::Tensor picked = order.narrow(0, at, training.batch);
    const torch::Tensor images = rows(all.images, picked);
    const torch::Tensor labels = rows(all.labels, picked);
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      const tutti::compat::AutocastScope autocast(device().type(),
                                                  bfloat16 ? std::optional(torch::kBFloat16) : std::nullopt);
      loss = loss_of(net, images, labels);
    }
    loss.backward();
    optimizer.step();
    if (step % kLookEvery == 0 && !std::isfinite(loss.item<double>())) return 0;
    clock.step();
  }
  return clock.steps_per_second();
}

// Prints the images per second of every training, and the memory after the last.
int run_side(const std::string& side) {
  const torch::Device place = side.ends_with("-there") ? device() : torch::Device(torch::kCPU);
  const char* const kernels = side == "trainer-libtorch" ? "libtorch" : "auto";
  for (const Training& training : kTrainings) {
    const double steps =
        side.starts_with("trainer") ? trainer(training, place, kernels) : loop(training, place);
    fmt::print("{:.1f} ", steps * static_cast<double>(training.batch));
    std::fflush(stdout);
  }
  fmt::print("{:.1f}\n", gpu_mebibytes());
  return 0;
}

struct Side {
  const char* name;
  std::vector<std::string> command;
  size_t base;  // the side to which it is compared
  std::vector<std::vector<double>> figures = std::vector<std::vector<double>>(kTrainings.size() + 1);
};

void run_once(Side& side) {
  std::istringstream text(bench::last_line_of(side.command));
  std::vector<double> figures;
  for (double figure = 0; text >> figure;) figures.push_back(figure);
  if (figures.size() != side.figures.size()) return;
  for (size_t i = 0; i < figures.size(); ++i) side.figures[i].push_back(figures[i]);
}

void compare_steps(const std::string& self) {
  const std::string python = bench::pytorch_python(TORCH_VERSION).value_or("false");
  const std::string peer = (bench::folder() / "peers/train_step_gpu.py").string();
  std::vector<Side> sides = {
      {"Tutti's Trainer", {self, "--side", "trainer"}, 1},
      {"LibTorch loop by hand", {self, "--side", "loop"}, 1},
      {"Tutti's Trainer, --kernels libtorch", {self, "--side", "trainer-libtorch"}, 1},
      {"PyTorch from Python", {python, peer}, 1},
      {"Tutti's Trainer, examples on the GPU", {self, "--side", "trainer-there"}, 5},
      {"LibTorch loop by hand, examples on the GPU", {self, "--side", "loop-there"}, 5},
  };
  for (int round = 0; round < kRounds; ++round) {
    for (Side& side : sides) {
      fmt::print(stderr, "round {}/{}: {}\n", round + 1, kRounds, side.name);
      run_once(side);
    }
  }
  fmt::print("| images/s");
  for (const Training& training : kTrainings)
    fmt::print(" | {}, batch {}", training.precision, training.batch);
  fmt::print(" | MiB on the GPU |\n|---|---|---|---|---|---|\n");
  for (const Side& side : sides) {
    fmt::print("| {}", side.name);
    for (size_t i = 0; i < side.figures.size(); ++i) {
      const auto& base = sides[side.base].figures[i];
      if (side.figures[i].empty() || base.empty())
        fmt::print(" | not here");
      else if (i == kTrainings.size())
        fmt::print(" | {:.0f}", bench::median(side.figures[i]));
      else
        fmt::print(" | {:.0f} ({:.2f})", bench::median(side.figures[i]),
                   bench::median(side.figures[i]) / bench::median(base));
    }
    fmt::print(" |\n");
  }
}

// --- Several workers on one GPU.
struct Trained {
  double per_second = 0;
  std::string weights;
};

Trained train_together(const std::filesystem::path& bin, const std::string& folder, int workers) {
  const std::string report = folder + "/report.json";
  std::filesystem::remove(report);
  bench::last_line_of(
      {"/bin/sh", "-c",
       fmt::format("'{0}/tutti' run -n {1} -- '{0}/mnist' --device cuda --lanes 4 --batch 64 --steps 300 "
                   "--threads 1 --logdir= --report '{2}'",
                   bin.string(), workers, report)});
  std::ifstream in(report);
  const auto found = nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (!found.is_object()) return {};
  return {found.value("examples_per_second", 0.0), found.value("weights_sha256", "")};
}

void compare_workers(const std::filesystem::path& bin) {
  const bench::Scratch scratch(std::filesystem::temp_directory_path().string());
  fmt::print("\n| workers | images/s | weights |\n|---|---|---|\n");
  std::string first;
  for (const int workers : {1, 1, 2, 4}) {
    const Trained found = train_together(bin, scratch.path(), workers);
    if (first.empty()) first = found.weights;
    fmt::print("| {} | {:.0f} | {} |\n", workers, found.per_second,
               found.weights.empty()    ? "it failed"
               : found.weights == first ? "the same"
                                        : "others");
  }
}

// --- Sums of one value per rank.
double milliseconds(const std::function<void()>& body) {
  constexpr int kRepeats = 20;
  std::vector<double> all;
  for (int i = 0; i < kRepeats + 3; ++i) {
    torch::cuda::synchronize();
    const auto begin = Clock::now();
    body();
    torch::cuda::synchronize();
    if (i >= 3) all.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
  }
  return bench::median(all);
}

void compare_sums(int64_t elements, int inputs) {
  namespace comm = tutti::comm;
  std::vector<torch::Tensor> all;
  for (int i = 0; i < inputs; ++i) all.push_back(torch::randn({elements}, torch::kCUDA));
  const torch::Tensor output = torch::empty_like(all[0]);
  torch::Tensor result = torch::empty_like(all[0]);
  const auto program = comm::one_by_rank(inputs).program;
  const comm::Reduction reduction{tutti::ElementType::Float32, comm::ReduceOp::Sum, elements};
  const double ours = milliseconds([&] { comm::reduce_tensors(all, output, reduction, program); });
  const double plain = milliseconds([&] {
    torch::add_out(result, all[0], all[1]);
    for (size_t i = 2; i < all.size(); ++i) result.add_(all[i]);
  });
  const double copying = milliseconds([&] { output.copy_(all[0]); });
  fmt::print("| {} | {} | {:.3f} | {:.3f} | {:.3f} | {:.2f} |\n", inputs, elements, ours, plain, copying,
             ours / plain);
}

int run_all() {
  const auto self = std::filesystem::read_symlink("/proc/self/exe");
  fmt::print("## Training with a GPU\n\n{} (`./dev bench gpu`).\n\n",
             tutti::find_kernels(torch::Device(torch::kCUDA, 0), 1).libraries);
  fmt::print(
      "The MNIST network, Adam, examples as bytes in the memory of the host or of the GPU; median of {} "
      "alternating rounds of {} steps, and the ratio to the loop by hand. The memory is what is not free on "
      "the GPU after the four trainings, of which the driver's context is a part.\n\n",
      kRounds, kSteps);
  std::fflush(stdout);
  compare_steps(self.string());
  fmt::print(
      "\n`mnist --lanes 4 --batch 64` for 300 steps, by workers that share the GPU, with gradients that go "
      "through host memory. The weights of a row are \"the same\" if their hash is the first row's.\n");
  std::fflush(stdout);
  compare_workers(self.parent_path());
  fmt::print(
      "\nMilliseconds of the sum of one vector per rank in the order that gives the same bits everywhere, of "
      "LibTorch's `add_` one by one, and of a copy of one vector.\n\n"
      "| vectors | floats | Tutti | `add_` | copy | Tutti / `add_` |\n|---|---|---|---|---|---|\n");
  for (const int64_t elements : {int64_t{1663370}, int64_t{100000000}}) {
    for (const int inputs : {2, 4, 8}) compare_sums(elements, inputs);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "--side" && argc == 3) return run_side(argv[2]);
  if (!torch::cuda::is_available()) {
    fmt::print(stderr, "bench_gpu: there is no GPU here, or this LibTorch is built without CUDA\n");
    return 3;
  }
  return what == "--here" ? 0 : run_all();
}

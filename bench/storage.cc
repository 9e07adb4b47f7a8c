// Compares the speed at which checkpoints and exported models are written and synced to the disk with `dd
// conv=fsync` of a file of the same content. Also measures how long a checkpoint stops the training. Prints
// Markdown.
//   bench_storage [--dir FOLDER] [--megabytes 512] [--rounds 7]
//   bench_storage saves [FLAG...]   the training that saves a large table, for the parent
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <tutti/tutti.h>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>
#include <torch/torch.h>

#include "bench/sides.h"
#include "tutti/base/environment.h"
#include "tutti/base/error.h"
#include "tutti/base/flags.h"
#include "tutti/base/guarded_main.h"
#include "tutti/store/checkpoint.h"
#include "tutti/store/safetensors.h"
#include "tutti/train/export/torchscript.h"

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using tutti::store::NamedTensor;

constexpr int64_t kTensors = 16;

// Returns the seconds that the call takes, on a disk that has nothing else to write.
double seconds(const std::string& folder, const std::function<void()>& body) {
  fs::remove_all(folder);
  fs::create_directories(folder);
  ::sync();
  const auto begin = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// A model that is little more than its parameters.
tutti::Computation computation_of(const std::vector<NamedTensor>& weights) {
  const torch::Tensor rows = torch::rand({8, 2});
  return {.parameters = weights,
          .buffers = {},
          .functions = {
              {.arguments = {"x"},
               .body = [&](const auto& inputs) { return std::vector{inputs[0] * weights[0].tensor[0]}; },
               .sizes = {{.name = "examples", .places = {{0, 0}}}},
               .examples = {{rows}, {rows.narrow(0, 0, 4)}}}}};
}

// The table that is saved while it is trained: 1 GB.
constexpr int64_t kSavedRows = 8'000'000;
constexpr int64_t kSavedDim = 32;
constexpr int64_t kBatch = 4096;
constexpr int64_t kBatches = 8;
constexpr int64_t kSaves = 7;

double milliseconds_of(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

// Saves checkpoints, each when the one before has been written, and measures how long each stops the
// training.
class Saves final : public tutti::Hook {
 public:
  void after_step(tutti::Training& training, const tutti::StepResult&) override {
    if (is_writing_ || training.stop_reason) return;
    if (static_cast<int64_t>(pauses_.size()) == kSaves) {
      training.stop_reason = "all checkpoints were saved";
      return;
    }
    is_writing_ = true;
    pauses_.push_back(milliseconds_of([&] { training.save_checkpoint(); }));
  }
  void after_save(tutti::Training&, const std::string&, int64_t) override { is_writing_ = false; }

  double pause() const { return bench::median(pauses_); }

 private:
  bool is_writing_ = false;
  std::vector<double> pauses_;
};

struct OneTable : torch::nn::Module {
  tutti::nn::Embedding id = register_module("id", tutti::nn::Embedding(kSavedRows, kSavedDim));
};

// Prints how long a checkpoint stops the training, and how long copying the table into new memory takes.
int train_and_save(int argc, char** argv) {
  tutti::Program program;
  program.about = "Saves a table of 1 GB while it is trained.";
  program.defaults.training.batch = kBatch;
  program.defaults.training.epochs = 1'000'000;
  return tutti::run(argc, argv, program, [](tutti::Context& ctx) {
    const auto loss = [](OneTable& net, const tutti::Batch& batch) {
      return net.id(batch["id"]).square().mean();
    };
    tutti::Trainer trainer(ctx, tutti::make_trainable(std::make_shared<OneTable>(), loss),
                           torch::optim::SGDOptions(0.1));
    auto hook = std::make_unique<Saves>();
    const Saves& saves = *hook;
    trainer.add_hook(std::move(hook));
    trainer.fit(tutti::data::Feed(
        tutti::data::from_tensors({{"id", torch::randint(kSavedRows, {kBatch * kBatches})}})));
    std::vector<double> copies;
    const torch::Tensor table = torch::ones({kSavedRows, kSavedDim});
    for (int64_t i = 0; i < kSaves; ++i) {
      torch::Tensor copy;
      copies.push_back(milliseconds_of([&] { copy = table.clone(); }));
    }
    fmt::print("{} {}\n", saves.pause(), bench::median(copies));
  });
}

void measure_saves(const std::string& parent) {
  const bench::Scratch scratch(parent);
  std::istringstream line(
      bench::last_line_of({fs::read_symlink("/proc/self/exe").string(), "saves", "--threads", "1", "--logdir",
                           scratch.path() + "/run", "--log-level", "error"}));
  double pause = 0;
  double copy = 0;
  if (!(line >> pause >> copy)) return;
  fmt::print(
      "\nA checkpoint of one table of {} rows of {} float32 (1 GB), all rows, by one worker, stops the "
      "training for "
      "{:.0f} ms; copying such a table into new memory takes {:.0f} ms (medians of {}): {:.2f} of it; to "
      "reach: 1.\n",
      kSavedRows, kSavedDim, pause, copy, kSaves, pause / copy);
}

int compare(const std::string& parent, int64_t megabytes, int64_t rounds) {
  const int64_t bytes = megabytes * 1000000;
  std::vector<NamedTensor> weights;
  for (int64_t i = 0; i < kTensors; ++i)
    weights.push_back({fmt::format("layer{}.weight", i), torch::rand({bytes / kTensors / 4})});
  const bench::Scratch scratch(parent);
  const std::string folder = scratch.path() + "/files";
  // The source of dd is in memory, like the tensors.
  const bench::Scratch memory("/dev/shm");
  const std::string source = memory.path() + "/source";
  {
    std::ofstream file(source, std::ios::binary);
    for (const NamedTensor& named : weights)
      file.write(static_cast<const char*>(named.tensor.data_ptr()),
                 static_cast<std::streamsize>(named.tensor.nbytes()));
  }
  const std::string dd = fmt::format("dd if={} of={}/dd bs=16M conv=fsync status=none", source, folder);
  const std::map<std::string, std::pair<double, std::function<void()>>> sides = {
      {"dd",
       {1,
        [&] {
          if (std::system(dd.c_str()) != 0) tutti::fail(tutti::ErrorKind::Overloaded, "dd failed");
        }}},
      {"checkpoint",
       {1,
        [&] { tutti::store::CheckpointDir(folder).save({.step = 1, .weights = weights, .optimizer = {}}); }}},
      {"export", {2, [&] {
                    const torch::NoGradGuard no_grad;
                    static_cast<void>(tutti::write_with_weights(tutti::TorchScriptFormat(),
                                                                computation_of(weights), folder));
                  }}}};
  std::map<std::string, std::vector<double>> speeds;
  std::map<std::string, std::vector<double>> shares;
  for (int64_t round = 0; round < rounds; ++round) {
    std::map<std::string, double> of_round;
    for (const auto& [name, side] : sides)
      of_round[name] = side.first * static_cast<double>(bytes) / seconds(folder, side.second) / 1e6;
    for (const auto& [name, speed] : of_round) {
      speeds[name].push_back(speed);
      shares[name].push_back(speed / of_round.at("dd"));
    }
  }
  fmt::print(
      "## Writing files\n\nA model of {} MB in {} tensors is written and synced, in {} rounds of all three. "
      "An "
      "export is two files, the\nTorchScript module and the safetensors file. MB/s are medians; the share is "
      "the median of those of the rounds.\n\n",
      megabytes, kTensors, rounds);
  fmt::print("| written by | MB/s | share of dd |\n|---|---|---|\n");
  for (const char* name : {"dd", "checkpoint", "export"})
    fmt::print("| {} | {:.0f} | {:.2f} |\n", name, bench::median(speeds.at(name)),
               bench::median(shares.at(name)));
  measure_saves(parent);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return tutti::guarded_main([&] {
    if (argc > 1 && std::string(argv[1]) == "saves") return train_and_save(argc - 1, argv + 1);
    std::string dir = ".";
    int64_t megabytes = 512;
    int64_t rounds = 7;
    tutti::FlagSet flags("Compares the speed of writing checkpoints and exports with that of dd.");
    flags.add("--dir", dir, "a folder on the disk that is measured");
    flags.add("--megabytes", megabytes, "the size of the model");
    flags.at_least("--megabytes", 1);
    flags.add("--rounds", rounds, "how often each is written");
    flags.at_least("--rounds", 1);
    if (const auto text = flags.parse(argc, argv, tutti::Environment())) {
      fmt::print("{}", *text);
      return 0;
    }
    return compare(dir, megabytes, rounds);
  });
}

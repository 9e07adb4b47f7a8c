// Compares the speed at which checkpoints and exported models are written, and are safe on the disk, with `dd
// conv=fsync` of a file of the same content. Prints Markdown.
//   bench_storage [--dir FOLDER] [--megabytes 512] [--rounds 7]
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

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

// Returns the seconds that it takes, on a disk that has nothing else to write.
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
          .arguments = {"x"},
          .function = [&](const auto& inputs) { return std::vector{inputs[0] * weights[0].tensor[0]}; },
          .examples = {{rows}, {rows.narrow(0, 0, 4)}},
          .drop_unused = false};
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
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return tutti::guarded_main([&] {
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

// Compares sharded embeddings with hand-written ones in PyTorch and with TorchRec: lookups and steps of
// the tables alone, and training a click model. Alternates between all sides in one run. Prints Markdown.
//   bench_embedding                    all sides
//   bench_embedding clicks [FLAG...]   trains the click model, as every program of Tutti
#include <array>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <tutti/tutti.h>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include "bench/sides.h"
#include "tutti/base/file.h"

namespace {

namespace fs = std::filesystem;

constexpr int kRounds = 3;

constexpr int64_t kTables = 26;
constexpr int64_t kRows = 384615;
constexpr int64_t kDim = 16;
constexpr int64_t kNumbers = 13;
constexpr int64_t kBatch = 4096;
constexpr int64_t kBatches = 8;

struct ClickNet : torch::nn::Module {
  ClickNet()
      : dense(register_module("dense", torch::nn::Sequential(torch::nn::Linear(kTables * kDim + kNumbers, 64),
                                                             torch::nn::ReLU(), torch::nn::Linear(64, 64),
                                                             torch::nn::ReLU(), torch::nn::Linear(64, 1)))) {
    for (int64_t table = 0; table < kTables; ++table)
      tables.push_back(register_module(fmt::format("id{}", table), tutti::nn::Embedding(kRows, kDim)));
  }

  torch::nn::Sequential dense;
  std::vector<tutti::nn::Embedding> tables;
};

// Examples in memory: ids of a power law, and labels that mean nothing.
tutti::data::Feed click_examples(int64_t size) {
  tutti::Batch::Tensors columns;
  for (int64_t table = 0; table < kTables; ++table) {
    const torch::Tensor u = torch::rand({size}, torch::kDouble);
    columns.emplace_back(fmt::format("id{}", table),
                         (u.pow(4) * static_cast<double>(kRows)).to(torch::kLong));
  }
  columns.emplace_back("numbers", torch::rand({size, kNumbers}));
  columns.emplace_back("click", (torch::rand({size}) < 0.3).to(torch::kFloat32));
  return tutti::data::Feed(tutti::data::from_tensors(std::move(columns)));
}

torch::Tensor click_loss(ClickNet& net, const tutti::Batch& batch) {
  std::vector<torch::Tensor> inputs = {batch["numbers"]};
  for (size_t table = 0; table < net.tables.size(); ++table)
    inputs.push_back(net.tables[table](batch.tensors()[table].second));
  return torch::binary_cross_entropy_with_logits(net.dense->forward(torch::cat(inputs, 1)).squeeze(1),
                                                 batch["click"]);
}

// Prints the examples per second of all workers, without the first steps.
class Speed final : public tutti::Hook {
 public:
  void after_step(tutti::Training& training, const tutti::StepResult&) override {
    const auto now = std::chrono::steady_clock::now();
    if (training.step == kWarmUp) begin_ = now;
    if (training.step != training.end_step || !training.group.is_chief()) return;
    const double seconds = std::chrono::duration<double>(now - begin_).count();
    bench::print_measured(static_cast<double>((training.step - kWarmUp) * kBatch * training.group.world) /
                          seconds);
  }

 private:
  static constexpr int64_t kWarmUp = 3;
  std::chrono::steady_clock::time_point begin_;
};

int train_clicks(int argc, char** argv) {
  tutti::Program program;
  program.about = "Trains the click model of the benchmark.";
  program.defaults.training.batch = kBatch;
  return tutti::run(argc, argv, program, [](tutti::Context& ctx) {
    tutti::Trainer trainer(ctx, tutti::make_trainable(std::make_shared<ClickNet>(), click_loss),
                           torch::optim::AdagradOptions(0.05));
    trainer.add_hook(std::make_unique<Speed>());
    trainer.fit(click_examples(kBatch * kBatches * ctx.world()));
  });
}

// Medians of one rank, in milliseconds.
struct Times {
  double lookup = 0;
  double step = 0;
};

struct Work {
  const char* name;
  const char* tables;
  const char* rows;
  std::vector<const char*> peers;  // of peers/embedding.py
};

const std::array kWorks = {
    Work{"26 tables of 38,461 rows", "26", "38461", {"hand", "tablewise", "bags"}},
    Work{"one table of 1,000,000 rows", "1", "1000000", {"hand", "rowwise"}},
};

using Rounds = std::vector<Times>;
using Sides = std::map<std::string, Rounds>;

Times median_of(const Rounds& rounds) {
  std::vector<double> lookups;
  std::vector<double> steps;
  for (const Times& times : rounds) {
    lookups.push_back(times.lookup);
    steps.push_back(times.step);
  }
  return {bench::median(lookups), bench::median(steps)};
}

// Adds a round of Tutti, and a round of a local index_select and copy, which each rank measures as well.
void measure_own(const std::string& bin, const Work& work, const std::string& comm, Sides& sides) {
  const bench::Scratch scratch(fs::temp_directory_path());
  const std::string json = scratch.path() + "/times.json";
  bench::last_line_of({"env", "TUTTI_COMM=" + comm, bin + "/tutti", "bench", "embedding", "--workers", "2",
                       "--tables", work.tables, "--rows", work.rows, "--json", json});
  if (!fs::exists(json)) return;
  const auto times = nlohmann::json::parse(tutti::read_file(json));
  sides["Tutti over " + comm].push_back({times.at("lookup_ms"), times.at("step_ms")});
  if (comm == "shm") sides["local index_select and copy"].push_back({times.at("local_ms"), 0});
}

// Adds a round of a peer if it is installed.
void measure_peer(const std::string& python, const Work& work, const char* peer, Sides& sides) {
  std::istringstream line(bench::last_line_of(
      {python, (bench::folder() / "peers/embedding.py").string(), peer, work.tables, work.rows}));
  static const std::map<std::string, std::string> kNames = {
      {"hand", "by hand, torch.distributed"},
      {"rowwise", "TorchRec, EmbeddingCollection by rows"},
      {"tablewise", "TorchRec, EmbeddingCollection by tables"},
      {"bags", "TorchRec, EmbeddingBagCollection by tables"}};
  Times times;
  if (line >> times.lookup >> times.step) sides[kNames.at(peer)].push_back(times);
}

void measure_lookups(const std::string& bin, const std::string& python) {
  fmt::print(
      "Two ranks, one core each; 65,536 ids of a power law, floor(N u^4), per rank and step; 32 float32 a "
      "row; "
      "medians of 30 steps, and of {} alternating rounds. The peers exchange over Gloo.\n\n",
      kRounds);
  for (const Work& work : kWorks) {
    Sides sides;
    for (int round = 0; round < kRounds; ++round) {
      std::cerr << fmt::format("round {}/{}: {}\n", round + 1, kRounds, work.name);
      for (const char* comm : {"shm", "tcp"}) measure_own(bin, work, comm, sides);
      for (const char* peer : work.peers) measure_peer(python, work, peer, sides);
    }
    fmt::print(
        "| {} | lookup, ms | whole step with Adagrad, ms | times Tutti's lookup | step "
        "|\n|---|---|---|---|---|\n",
        work.name);
    const Times own = sides.contains("Tutti over shm") ? median_of(sides.at("Tutti over shm")) : Times();
    for (const auto& [side, rounds] : sides) {
      const Times times = median_of(rounds);
      if (times.step == 0)
        fmt::print("| {} | {:.2f} | | {:.2f} | |\n", side, times.lookup, times.lookup / own.lookup);
      else
        fmt::print("| {} | {:.2f} | {:.1f} | {:.2f} | {:.2f} |\n", side, times.lookup, times.step,
                   times.lookup / own.lookup, times.step / own.step);
    }
    fmt::print("\n");
  }
}

std::vector<std::string> own_training(const std::string& bin, int workers) {
  return {"sh", "-c",
          fmt::format("{0}/tutti run -n {1} -- {0}/bench_embedding clicks --steps 60 --threads 1 --logdir= "
                      "--log-level error | sed 's/^\\[[^]]*\\] //'",
                      bin, workers)};
}

void measure_clicks(const std::string& bin, const std::string& python) {
  const std::string script = (bench::folder() / "peers/clicks.py").string();
  const auto peer = [&](const char* kind, const char* workers, const char* threads) {
    return std::vector<std::string>{python, script, kind, workers, threads};
  };
  const auto all =
      bench::measure({{"Tutti, 1 worker", own_training(bin, 1)},
                      {"Tutti, 2 workers", own_training(bin, 2)},
                      {"one process, nn.EmbeddingBag(sparse=True), 1 thread", peer("sparse", "1", "1")},
                      {"one process, nn.EmbeddingBag(sparse=True), 2 threads", peer("sparse", "1", "2")},
                      {"TorchRec, 2 ranks", peer("torchrec", "2", "1")},
                      {"DDP, sparse gradients, 2 ranks", peer("ddp-sparse", "2", "1")},
                      {"DDP, dense gradients, 2 ranks", peer("ddp-dense", "2", "1")}},
                     kRounds);
  fmt::print(
      "The click model: {} tables of {} rows of {} float32, {} numbers, two hidden layers of 64, Adagrad, "
      "batches of {} per worker in memory; medians of {} alternating rounds.\n\n| | examples/s "
      "|\n|---|---|\n",
      kTables, kRows, kDim, kNumbers, kBatch, kRounds);
  for (const auto& [side, measured] : all) fmt::print("| {} | {:.0f} |\n", side, measured.per_second);
  const auto ratio = [&](const char* what, const char* own, const char* other, const char* to_reach) {
    if (all.contains(own) && all.contains(other))
      fmt::print("{}: {:.2f}; to reach: {}. ", what, all.at(own).per_second / all.at(other).per_second,
                 to_reach);
  };
  fmt::print("\n");
  ratio("Two workers to TorchRec's two ranks", "Tutti, 2 workers", "TorchRec, 2 ranks", "1.6");
  ratio("One worker to one process", "Tutti, 1 worker", "one process, nn.EmbeddingBag(sparse=True), 1 thread",
        "1.3");
  fmt::print("\n");
}

int measure_all() {
  const std::string bin = fs::read_symlink("/proc/self/exe").parent_path().string();
  const std::string python = bench::peer_python("torchrec").value_or("false");
  fmt::print(
      "## Sharded embeddings\n\n`./dev bench embedding`; to reach: lookups and steps 3 times as fast as "
      "those by "
      "hand, within twice the time of a local index_select and copy; over TCP ahead of TorchRec.\n\n");
  measure_lookups(bin, python);
  measure_clicks(bin, python);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return argc > 1 && std::string(argv[1]) == "clicks" ? train_clicks(argc - 1, argv + 1) : measure_all();
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_embedding: {}\n", error.what());
    return 1;
  }
}

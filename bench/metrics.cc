// Measures how fast the area under the ROC curve of 10 million predictions is computed on one core, compared
// with scikit-learn. Alternates between all sides in one run. Prints Markdown.
//   bench_metrics                    all sides
//   bench_metrics --side exact DIR   one side, for the parent or a profiler; DIR has the examples
#include "tutti/metrics/metrics.h"

#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "bench/sides.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/text.h"

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int64_t kExamples = 10'000'000;
constexpr int64_t kBatch = 10'000;
constexpr int kRounds = 5;

template <class Number>
void write_numbers(const std::string& path, const std::vector<Number>& numbers) {
  tutti::FileWriter writer(path);
  writer.write(std::as_bytes(std::span(numbers)));
  writer.finish();
}

torch::Tensor read_numbers(const std::string& path, torch::ScalarType type) {
  std::string bytes = tutti::read_file(path);
  const torch::Tensor shared = torch::from_blob(bytes.data(), {kExamples}, type);
  return shared.clone();
}

// A third of the examples are positive, with scores that are higher by one standard deviation. Scores are
// probabilities, as float32 and as float64 that float32 cannot represent.
void write_examples(const std::string& folder) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> noise;
  std::vector<float> shorter;
  std::vector<double> longer;
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < kExamples; ++i) {
    labels.push_back(random() % 3 == 0 ? 1 : 0);
    longer.push_back(1 / (1 + std::exp(-noise(random) - static_cast<double>(labels.back()))));
    shorter.push_back(static_cast<float>(longer.back()));
  }
  write_numbers(folder + "/float32", shorter);
  write_numbers(folder + "/float64", longer);
  write_numbers(folder + "/labels", labels);
}

struct Kind {
  const char* side;
  const char* peer;  // the speed is given as a multiple of this side's speed
  const char* name;
  bool is_double;
  int64_t thresholds;
  const char* to_reach;
};
constexpr std::array kKinds = {
    Kind{"exact", "sklearn-float32", "exact, float32", false, 0, "20"},
    Kind{"double", "sklearn-float64", "exact, float64", true, 0, ""},
    Kind{"thresholds", "sklearn-float32", "200 thresholds, float32", false, 200, ""},
};

// The examples are in memory before the time is taken.
int run_side(const std::string& side, const std::string& folder) {
  bench::pin_to_one_core();
  torch::set_num_threads(1);
  for (const Kind& kind : kKinds) {
    if (side != kind.side) continue;
    const torch::Tensor scores = kind.is_double ? read_numbers(folder + "/float64", torch::kDouble)
                                                : read_numbers(folder + "/float32", torch::kFloat);
    const torch::Tensor labels = read_numbers(folder + "/labels", torch::kLong);
    const auto begin = Clock::now();
    const auto metric = tutti::metrics::auc("label", {.num_thresholds = kind.thresholds});
    for (int64_t i = 0; i < kExamples; i += kBatch)
      metric->update(scores.narrow(0, i, kBatch), tutti::Batch({{"label", labels.narrow(0, i, kBatch)}}));
    const double value = metric->value().value();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    tutti::FileWriter result(folder + "/" + side + ".value");
    result.write(fmt::format("{}", value));
    result.finish();
    bench::print_measured(static_cast<double>(kExamples) / seconds);
    return 0;
  }
  fmt::print(stderr, "no such side: {}\n", side);
  return 2;
}

std::optional<double> value_of(const std::string& folder, const std::string& side) {
  const std::string path = folder + "/" + side + ".value";
  return fs::exists(path) ? tutti::parse_double(tutti::read_file(path)) : std::nullopt;
}

void print_report(const std::map<std::string, bench::Measured>& all, const std::string& folder) {
  fmt::print(
      "## Metrics\n\nThe area under the ROC curve of {} million predictions, in batches of {} and with "
      "labels "
      "of int64, on one core; median of {} alternating rounds (`./dev bench metrics`).\n\n| | seconds | "
      "times scikit-learn | to reach | peak memory, MiB |\n|---|---|---|---|---|\n",
      kExamples / 1'000'000, kBatch, kRounds);
  const auto row = [&](const std::string& name, const std::string& side, const std::string& peer,
                       const char* to_reach) {
    if (!all.contains(side)) return fmt::print("| {} | not here | | | |\n", name);
    const bench::Measured& measured = all.at(side);
    const std::string ratio =
        all.contains(peer) ? fmt::format("{:.1f}", measured.per_second / all.at(peer).per_second) : "";
    fmt::print("| {} | {:.2f} | {} | {} | {:.0f} |\n", name, kExamples / measured.per_second, ratio, to_reach,
               measured.peak_mebibytes);
  };
  for (const Kind& kind : kKinds) row(kind.name, kind.side, kind.peer, kind.to_reach);
  for (const char* type : {"float32", "float64"})
    row(fmt::format("scikit-learn's roc_auc_score, {}", type), fmt::format("sklearn-{}", type), "", "");
  const auto own = value_of(folder, "exact");
  const auto peers = value_of(folder, "sklearn-float32");
  if (own && peers)
    fmt::print("\nThe exact area differs from scikit-learn's by {:.1e}.\n", std::abs(*own - *peers));
}

int measure_all() {
  const fs::path self = fs::read_symlink("/proc/self/exe");
  const bench::Scratch scratch(fs::exists("/dev/shm") ? "/dev/shm" : "/tmp");
  const std::string& folder = scratch.path();
  write_examples(folder);
  std::vector<bench::Side> sides;
  for (const Kind& kind : kKinds) sides.push_back({kind.side, {self.string(), "--side", kind.side, folder}});
  const std::string script = (bench::folder() / "peers/metrics.py").string();
  const std::string python = bench::peer_python("metrics").value_or("/usr/bin/python3");
  for (const char* type : {"float32", "float64"})
    sides.push_back({fmt::format("sklearn-{}", type), {python, script, type, folder}});
  print_report(bench::measure(sides, kRounds), folder);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return argc == 4 && std::string(argv[1]) == "--side" ? run_side(argv[2], argv[3]) : measure_all();
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_metrics: {}\n", error.what());
    return 1;
  }
}

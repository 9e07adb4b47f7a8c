// Measures what --audit costs: the MNIST network on two workers with four lanes, over shared memory and TCP,
// one core each; and how many steps a worker computes wrongly until an audit finds it. Prints Markdown.
//   bench_audit                            all of it
//   bench_audit delays COUNT               the delays alone
//   bench_audit train --found FILE ...     the training of the delays
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <tutti/tutti.h>
#include <vector>

#include <fmt/format.h>
#include <torch/torch.h>

#include "bench/sides.h"

namespace {

constexpr int kRounds = 5;
constexpr int kSteps = 300;
constexpr int kWorkers = 4;   // of the training whose delays are measured, with two lanes each
constexpr int kDelays = 200;  // that are measured for each kind of audit

// Trains and prints the speed and the CPU time in seconds, with the start of the processes.
constexpr const char* kRun =
    R"(F=$(mktemp); TIMEFORMAT='%U %S'; T=$({ time $BIN/tutti run -n 2 -- $BIN/mnist --lanes 4 --batch 25 --threads 1 )"
    R"(--logdir= --log-level error --report $F $FLAGS >/dev/null 2>&1; } 2>&1); )"
    R"(echo $(awk -F'[:,]' '/examples_per_second/ { print $2 }' $F) $(echo $T | awk '{ print $1 + $2 }'); rm $F)";

bench::Side side(const std::string& comm, int every) {
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
  return {fmt::format("{}, {}", comm, every == 0 ? "off" : fmt::format("--audit {}", every)),
          {"bash", "-c",
           fmt::format("BIN={}; FLAGS='--steps {} --comm {} --audit {}'; {}", self.parent_path().string(),
                       kSteps, comm, every, kRun)}};
}

// From a drawn step on, all losses of one worker are wrong in their last bits, until a step is made again
// because an audit has found that. Then the worker is well for a while.
class WrongFromHereOn final : public tutti::Hook {
 public:
  WrongFromHereOn(const tutti::Context& context, std::string found, int64_t most)
      : found_(std::move(found)),
        most_(most),
        every_(context.config().training.audit),
        is_here_(context.rank() == kWorkers - 1) {}

  void before_step(tutti::Training& training) override {
    if (!is_here_) return;
    const bool is_made_again = training.step == last_;
    last_ = training.step;
    if (is_wrong_ && is_made_again) {
      std::ofstream(found_, std::ios::app) << training.step - begin_ << "\n";
      is_wrong_ = false;
      begin_ = training.step + 1 + static_cast<int64_t>(random_() % static_cast<uint64_t>(2 * every_));
      if (++count_ == most_) training.stop_reason = "all delays were measured";
    } else if (training.step >= begin_) {
      is_wrong_ = true;
    }
  }
  torch::Tensor in(const torch::Tensor& loss) const {
    constexpr double kSlightly = 1 + 1e-6;
    return is_wrong_ ? loss * kSlightly : loss;
  }

 private:
  const std::string found_;
  const int64_t most_;
  const int64_t every_;
  const bool is_here_;
  std::mt19937_64 random_{1};
  int64_t begin_ = 3;
  int64_t last_ = -1;
  int64_t count_ = 0;
  bool is_wrong_ = false;
};

int train(int argc, char** argv) {
  std::string found;
  int64_t most = 0;
  tutti::Program program;
  program.add_flags = [&](tutti::FlagSet& flags) {
    flags.add("--found", found, "the file with a line for each delay");
    flags.add("--most", most, "after so many delays the training ends");
  };
  return tutti::run(argc, argv, program, [&](tutti::Context& context) {
    constexpr int64_t kExamples = 1000;
    constexpr int64_t kNumbers = 20;
    torch::manual_seed(1);
    const tutti::data::Feed feed(tutti::data::from_tensors(
        {{"x", torch::rand({kExamples, kNumbers})}, {"y", torch::rand({kExamples, 1})}}));
    auto wrong = std::make_unique<WrongFromHereOn>(context, found, most);
    tutti::Trainer trainer(context, std::make_shared<torch::nn::LinearImpl>(kNumbers, 1),
                           torch::optim::SGDOptions(1e-3),
                           [&wrong = *wrong](torch::nn::LinearImpl& net, const tutti::Batch& batch) {
                             return wrong.in(torch::mse_loss(net.forward(batch["x"]), batch["y"]));
                           });
    trainer.add_hook(std::move(wrong));
    trainer.fit(feed.shuffle());
  });
}

// Prints a row with the steps between the first wrong step and the one in which an audit has found it.
void print_delays(const std::string& bin, int every, int count) {
  const bench::Scratch scratch("/tmp");
  const std::string found = scratch.path() + "/found";
  bench::last_line_of({"sh", "-c",
                       fmt::format("{0}/tutti run -n {1} -- {0}/bench_audit train --lanes {2} --batch 1 "
                                   "--threads 1 --steps 1000000 --audit {3} --audit-action redo --log-level "
                                   "error --found {4} --most {5} >/dev/null 2>&1",
                                   bin, kWorkers, 2 * kWorkers, every, found, count)});
  std::vector<double> delays;
  std::ifstream file(found);
  for (double delay = 0; file >> delay;) delays.push_back(delay);
  if (delays.empty()) return;
  double sum = 0;
  for (const double delay : delays) sum += delay;
  fmt::print("| {} | {} | {:.1f} | {:.0f} | {:.0f} | {:.1f} |\n", every, delays.size(),
             sum / static_cast<double>(delays.size()), bench::median(delays),
             *std::max_element(delays.begin(), delays.end()), every * kWorkers / 2.0 - (every + 1) / 2.0);
}

void measure_delays(const std::string& bin, int count) {
  fmt::print(
      "\nHow many steps one of {} workers with two lanes each computes wrongly, from a drawn step on, until "
      "an "
      "audit finds it; 0 is the first wrong step. An audit finds it if its lane belongs to this worker, or "
      "if this worker is its second one: two workers of {}.\n\n| --audit | faults | mean | median | most | "
      "expected mean |\n|---|---|---|---|---|---|\n",
      kWorkers, kWorkers);
  for (const int every : {1, 10, 100}) print_delays(bin, every, count);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "train") return train(argc - 1, argv + 1);
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string bin = self.parent_path().string();
  if (what == "delays") {
    measure_delays(bin, std::stoi(argv[2]));
    return 0;
  }
  fmt::print(
      "## Audits\n\nThe MNIST network on two workers with two lanes of 25 images each, fp32, one core each; "
      "median of {} alternating rounds of {} steps (`./dev bench audit`).\n\n| | images/s | to off | CPU "
      "time, s | to "
      "off |\n|---|---|---|---|---|\n",
      kRounds, kSteps);
  for (const char* comm : {"shm", "tcp"}) {
    const std::vector<bench::Side> sides = {side(comm, 0), side(comm, 10), side(comm, 1)};
    const auto measured = bench::measure(sides, kRounds);
    const bench::Measured& off = measured.at(sides[0].name);
    for (const bench::Side& each : sides) {
      const auto& [speed, cpu] = measured.at(each.name);
      fmt::print("| {} | {:.0f} | {:.3f} | {:.1f} | {:.3f} |\n", each.name, speed, speed / off.per_second,
                 cpu, cpu / off.peak_mebibytes);
    }
  }
  measure_delays(bin, kDelays);
  return 0;
}

// Measures how soon the other workers go on after one is killed (`tutti run --min`), and what it costs to be
// ready for that. Prints Markdown.
//   bench_survival                     all of it
//   bench_survival train --times FILE  one of the trainings: in each, all workers but one are killed
#include <algorithm>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <tutti/tutti.h>
#include <vector>

#include <fmt/format.h>
#include <torch/torch.h>

#include "bench/mnist_net.h"
#include "bench/sides.h"
#include "examples/common/digits.h"

namespace {

constexpr int kWorkers = 4;
constexpr int kKills = 51;  // of each way, kWorkers - 1 in a training
constexpr int kRounds = 7;
constexpr int64_t kBetweenKills = 25;  // steps

// The time that all processes of a machine share.
double now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Kills one worker after every so many steps, and notes how long it takes until the next step is made.
class Kills final : public tutti::Hook {
 public:
  explicit Kills(std::string times) : times_(std::move(times)) {}

  void after_lane(tutti::Training& training, int64_t, const tutti::Batch&,
                  const tutti::LossOutput&) override {
    const tutti::Group& group = training.group;
    if (times_.empty() || group.world == 1 || training.step % kBetweenKills != kBetweenKills - 1) return;
    if (group.rank != static_cast<int>(training.step / kBetweenKills) % group.world) return;
    std::ofstream(times_ + ".killed") << fmt::format("{:.6f}", now());
    std::raise(SIGKILL);
  }
  void after_step(tutti::Training& training, const tutti::StepResult&) override {
    const int before = std::exchange(world_, training.group.world);
    if (times_.empty() || before <= world_ || !training.group.is_chief()) return;
    double killed = 0;
    std::ifstream(times_ + ".killed") >> killed;
    std::ofstream(times_, std::ios::app) << now() - killed << "\n";
  }

 private:
  const std::string times_;
  int world_ = 0;  // at the step before
};

int train(int argc, char** argv) {
  std::string times;
  tutti::Program program;
  program.add_flags = [&](tutti::FlagSet& flags) {
    flags.add("--times", times, "the file with the seconds; empty: nobody is killed");
  };
  return tutti::run(argc, argv, program, [&](tutti::Context& context) {
    tutti::Trainer trainer(context, std::make_shared<bench::MnistNet>(), torch::optim::AdamOptions(1e-3),
                           [](bench::MnistNet& net, const tutti::Batch& batch) {
                             return torch::cross_entropy_loss(net.forward(batch["image"]), batch["label"]);
                           });
    trainer.add_hook(std::make_unique<Kills>(times));
    trainer.fit(example::digits("").train().shuffle());
  });
}

std::string sh(const std::string& script) { return bench::last_line_of({"sh", "-c", script}); }

void print_repairs(const std::string& bin, const std::string& comm) {
  const bench::Scratch scratch("/tmp");
  const std::string times = scratch.path() + "/times";
  const int trainings = kKills / (kWorkers - 1);
  for (int i = 0; i < trainings; ++i)
    sh(fmt::format(
        "{0}/tutti run -n {1} --min 1 -- {0}/bench_survival train --comm {2} --lanes 12 --batch 4 "
        "--threads 1 --steps {3} --log-level error --times {4} >/dev/null 2>&1",
        bin, kWorkers, comm, kBetweenKills * kWorkers, times));
  std::vector<double> seconds;
  std::ifstream file(times);
  for (double one = 0; file >> one;) seconds.push_back(one);
  if (seconds.empty()) return;
  fmt::print("| {} | {} | {:.0f} ms | {:.0f} ms | {:.0f} ms |\n", comm, seconds.size(),
             *std::min_element(seconds.begin(), seconds.end()) * 1e3, bench::median(seconds) * 1e3,
             *std::max_element(seconds.begin(), seconds.end()) * 1e3);
}

bench::Side undisturbed(const std::string& name, const std::string& bin, const std::string& flags,
                        const std::string& comm) {
  const std::string script = fmt::format(
      "F=$(mktemp); {0}/tutti run -n 2 {1} -- {0}/bench_survival train --comm {2} --lanes 2 --batch 50 "
      "--threads 1 --steps 150 --log-level error --report $F >/dev/null; "
      "awk -F'[:,]' '/examples_per_second/ {{ print $2, 0 }}' $F; rm $F",
      bin, flags, comm);
  return {name, {"sh", "-c", script}};
}

int measure_all() {
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string bin = self.parent_path().string();
  fmt::print(
      "## Workers that are killed\n\nFrom `kill -9` of a worker, worker/0 or another, to the next step that "
      "the others have made: the MNIST network, {} workers on this machine of which one after the other is "
      "killed in the middle of a step, 12 lanes of 4 examples (`./dev bench survival`). No step but the one "
      "in flight is made again.\n\n| | kills | least | median | most |\n|---|---|---|---|---|\n",
      kWorkers);
  for (const char* comm : {"shm", "tcp"}) print_repairs(bin, comm);
  std::vector<bench::Side> sides;
  for (const char* comm : {"shm", "tcp"}) {
    sides.push_back(undisturbed(fmt::format("{}, a death ends the job", comm), bin, "", comm));
    sides.push_back(undisturbed(fmt::format("{}, --min 1", comm), bin, "--min 1", comm));
  }
  fmt::print(
      "\nUndisturbed, with two workers and batches of 50; median of {} alternating rounds of 150 steps. With "
      "--min, every worker updates all weights, so that the others have what a lost one knows; without, over "
      "shared memory, each updates a part.\n\n| | images/s |\n|---|---|\n",
      kRounds);
  for (const auto& [name, side] : bench::measure(sides, kRounds))
    fmt::print("| {} | {:.0f} |\n", name, side.per_second);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "train") return train(argc - 1, argv + 1);
  return measure_all();
}

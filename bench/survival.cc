// Measures how soon a training goes on after a worker is killed (`tutti run --min`), beside torchrun and
// torchft, what a worker that joins costs, and what it costs to be ready for that. Prints Markdown.
//   bench_survival                               all of it
//   bench_survival repairs ROUNDS KILLS          the kills and joins alone, without the others' programs
//   bench_survival train --times FILE --kills N  one of the trainings
#include <algorithm>
#include <cmath>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <tutti/tutti.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <torch/torch.h>

#include "bench/mnist_net.h"
#include "bench/sides.h"
#include "examples/common/digits.h"

namespace {

constexpr int kWorkers = 4;
constexpr int kRounds = 4;        // of kills, alternating between the ways
constexpr int kKills = 13;        // in each round; the launcher pauses longer after each one of a worker
constexpr int kKillsOfPeers = 3;  // which take longer
constexpr int kUndisturbedRounds = 7;
constexpr const char* kCable = "cable";  // of bench/on_two_hosts

// The time that all processes of a machine share.
double now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// The seconds since this process was started, as the kernel has noted it.
double own_age() {
  std::string line;
  std::getline(std::ifstream("/proc/self/stat"), line);
  std::istringstream rest(line.substr(line.rfind(')') + 1));
  constexpr int kStart = 20;  // the 22nd field; the second one ends with the bracket
  std::string field;
  for (int i = 0; i < kStart; ++i) rest >> field;
  timespec time{};
  clock_gettime(CLOCK_BOOTTIME, &time);
  const double since_boot = static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  return since_boot - std::stod(field) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

// The bytes that the loopback of this host and the cable to the other one have carried.
double bytes_carried() {
  double sum = 0;
  std::ifstream devices("/proc/net/dev");
  for (std::string line; std::getline(devices, line);) {
    std::istringstream text(line);
    std::string name;
    std::vector<double> numbers;
    std::getline(text >> std::ws, name, ':');
    for (double number = 0; text >> number;) numbers.push_back(number);
    constexpr size_t kSent = 8;
    if (name == "lo") sum += numbers.at(0);  // whatever is sent there is received there
    if (name == kCable) sum += numbers.at(0) + numbers.at(kSent);
  }
  return sum;
}

std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// Kills one worker after the other, some steps after all have come together, and notes how long it takes
// until the next step is made, by whoever has made it first (bench/peers/survival.py does the same).
class Kills final : public tutti::Hook {
 public:
  Kills(std::string times, int64_t kills) : times_(std::move(times)), most_(kills) {}

  void before_step(tutti::Training& training) override {
    if (times_.empty()) return;
    const auto kills = static_cast<int64_t>(lines_of(times_).size());
    together_ = training.group.world == kWorkers && kills == kills_ ? together_ + 1 : 0;
    kills_ = kills;
    if (kills >= most_) training.stop_reason = "all kills were measured";
  }
  void after_lane(tutti::Training& training, int64_t, const tutti::Batch&,
                  const tutti::LossOutput&) override {
    if (times_.empty() || together_ != 20 + 7 * kills_ % 20 || training.group.rank != kills_ % kWorkers)
      return;
    std::ofstream(killed_) << fmt::format("{:.6f} {}", now(), training.step);
    std::raise(SIGKILL);
  }
  void after_step(tutti::Training& training, const tutti::StepResult&) override {
    if (times_.empty()) return;
    note_join(training);
    double at = 0;
    int64_t step = 0;
    if (!(std::ifstream(killed_) >> at >> step) || training.step <= step) return;
    std::error_code is_noted_by_another;
    std::filesystem::rename(killed_, killed_ + ".noted", is_noted_by_another);
    if (is_noted_by_another) return;
    std::ofstream(times_, std::ios::app)
        << fmt::format("{:.6f} {} 0\n", now() - at, std::max<int64_t>(0, step + 1 - training.step));
  }

 private:
  // A worker that joins notes its age after its first step. The first worker notes how long this step took,
  // with the change before it, and what the network has carried meanwhile; and the same of ordinary steps.
  void note_join(const tutti::Training& training) {
    const Step step{now(), bytes_carried(), training.group.world};
    const Step last = std::exchange(last_, step);
    std::ofstream joins(times_ + ".joins", std::ios::app);
    if (last.world == 0 && training.context.identity().life > 0)
      joins << fmt::format("age {:.6f} 0\n", own_age());
    if (last.world == 0 || training.group.rank != 0 || step.world < kWorkers) return;
    joins << fmt::format("{} {:.6f} {:.0f}\n", last.world < kWorkers ? "join" : "step", step.end - last.end,
                         step.bytes - last.bytes);
  }

  struct Step {
    double end = 0;
    double bytes = 0;
    int world = 0;
  };
  Step last_;
  const std::string times_;
  const std::string killed_ = times_ + ".killed";
  const int64_t most_;
  int64_t kills_ = -1;
  int64_t together_ = 0;  // steps since all workers were there, and nobody was killed
};

int train(int argc, char** argv) {
  std::string times;
  int64_t kills = 0;
  tutti::Program program;
  program.add_flags = [&](tutti::FlagSet& flags) {
    flags.add("--times", times, "the file with the seconds; empty: nobody is killed");
    flags.add("--kills", kills, "when that file has so many lines, the training ends");
  };
  return tutti::run(argc, argv, program, [&](tutti::Context& context) {
    tutti::Trainer trainer(context, std::make_shared<bench::MnistNet>(), torch::optim::AdamOptions(1e-3),
                           [](bench::MnistNet& net, const tutti::Batch& batch) {
                             return torch::cross_entropy_loss(net.forward(batch["image"]), batch["label"]);
                           });
    trainer.add_hook(std::make_unique<Kills>(times, kills));
    trainer.fit(example::digits("").train().shuffle());
  });
}

std::string sh(const std::string& script) { return bench::last_line_of({"sh", "-c", script}); }

// A way to go on after a worker was killed: a command that appends a line for each kill to a file.
struct Way {
  std::string name;
  std::string command;
  int kills = kKillsOfPeers;
};

// `launch` are the words before the program.
Way ours(const std::string& name, const std::string& bin, const std::string& launch, const std::string& comm,
         const std::string& times, int kills) {
  return {name,
          fmt::format("{0}/tutti run {1} --min 1 --restarts 1000 -- {0}/bench_survival train --comm {2} "
                      "--lanes 12 --batch 4 --threads 1 --steps 1000000 --log-level error --times {3} "
                      "--kills $(($(cat {3} 2>/dev/null | wc -l) + {4})) >/dev/null 2>&1",
                      bin, launch, comm, times, kills),
          kills};
}

// Two workers on each of two hosts.
std::string on_two_hosts(const std::string& command) {
  return fmt::format("sh {} 1gbit '{}'", (bench::folder() / "on_two_hosts").string(), command);
}

void print_row(const Way& way, const std::string& times) {
  std::vector<double> seconds;
  double again = 0;
  double given_up = 0;
  const std::vector<std::string> lines = lines_of(times);
  for (const std::string& line : lines) {
    std::istringstream text(line);
    double one = 0;
    double steps = 0;
    double dropped = 0;
    if (!(text >> one >> steps >> dropped)) continue;  // nobody went on
    seconds.push_back(one);
    again += steps;
    given_up += dropped;
  }
  if (lines.empty()) return;
  if (seconds.empty()) seconds = {std::nan("")};
  const auto count = static_cast<double>(seconds.size());
  fmt::print("| {} | {} | {} | {:.2f} s | {:.2f} s | {:.2f} s | {:.1f} | {:.1f} |\n", way.name, lines.size(),
             lines.size() - seconds.size(), *std::min_element(seconds.begin(), seconds.end()),
             bench::median(seconds), *std::max_element(seconds.begin(), seconds.end()), again / count,
             given_up / count);
}

void print_joins(const Way& way, const std::string& times) {
  std::map<std::string, std::pair<std::vector<double>, std::vector<double>>> all;  // by kind: seconds, bytes
  for (const std::string& line : lines_of(times + ".joins")) {
    std::istringstream text(line);
    std::string kind;
    double seconds = 0;
    double bytes = 0;
    if (!(text >> kind >> seconds >> bytes)) continue;
    all[kind].first.push_back(seconds);
    all[kind].second.push_back(bytes);
  }
  if (all["join"].first.empty() || all["step"].first.empty() || all["age"].first.empty()) return;
  const auto [seconds, bytes] = all["join"];
  constexpr double kMega = 1e6;
  fmt::print("| {} | {} | {:.3f} s | {:.2f} s | {:.2f} s | {:.1f} MB | {:.2f} s |\n", way.name,
             seconds.size(), bench::median(all["step"].first), bench::median(seconds),
             *std::max_element(seconds.begin(), seconds.end()),
             (bench::median(bytes) - bench::median(all["step"].second)) / kMega,
             bench::median(all["age"].first));
}

double state_megabytes() {
  double numbers = 0;
  for (const torch::Tensor& parameter : bench::MnistNet().parameters())
    numbers += static_cast<double>(parameter.numel());
  constexpr double kOfAdam = 3;  // a parameter and its two slots
  return kOfAdam * numbers * sizeof(float) / 1e6;
}

void measure_repairs(const std::string& bin, int rounds, int kills, bool with_peers) {
  const bench::Scratch scratch("/tmp");
  const auto times = [&](size_t way) { return fmt::format("{}/{}", scratch.path(), way); };
  const std::string here = fmt::format("-n {}", kWorkers);
  std::vector<Way> ways = {ours("Tutti, shared memory", bin, here, "shm", times(0), kills),
                           ours("Tutti, TCP", bin, here, "tcp", times(1), kills)};
  if (std::system((on_two_hosts("true") + " 2>/dev/null").c_str()) == 0) {  // NOLINT(cert-env33-c)
    Way hosts =
        ours("Tutti, two hosts", bin, "-H 10.77.0.1:2,10.77.0.2:2 --rsh $AGENT", "shm+tcp", times(2), kills);
    hosts.command = on_two_hosts(hosts.command);
    ways.push_back(hosts);
  }
  const size_t own = ways.size();
  if (const auto python = with_peers ? bench::peer_python("torchft") : std::nullopt) {
    for (const auto& [name, way] : {std::pair("torchrun", "torchrun"), std::pair("torchft, 5 s", "torchft"),
                                    std::pair("torchft, 0.5 s", "torchft-tuned")})
      ways.push_back({name, fmt::format("{} {}/peers/survival.py {} {} {} >/dev/null 2>&1", *python,
                                        bench::folder().string(), way, kKillsOfPeers, times(ways.size()))});
  }
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < ways.size(); ++i) {
      std::cerr << fmt::format("round {}/{}: {}\n", round + 1, rounds, ways[i].name);
      const size_t wanted = lines_of(times(i)).size() + static_cast<size_t>(ways[i].kills);
      sh(ways[i].command);
      if (lines_of(times(i)).size() < wanted) std::ofstream(times(i), std::ios::app) << "never 0 0\n";
    }
  }
  for (size_t i = 0; i < ways.size(); ++i) print_row(ways[i], times(i));
  fmt::print(
      "\nWhat a worker costs that joins after it was started again: how long an ordinary step of all takes, "
      "how "
      "long the step takes after which it is among them, from the end of the step before; what the network "
      "carries in this time besides an ordinary step (the cable between the hosts, and the loopback; the "
      "state has {:.1f} MB); and the age of its process after its first step (medians).\n\n"
      "| | joins | a step | with a join | most | bytes | takes part after |\n|---|---|---|---|---|---|---|\n",
      state_megabytes());
  for (size_t i = 0; i < own; ++i) print_joins(ways[i], times(i));
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

void measure_all(const std::string& bin) {
  fmt::print(
      "## Workers that are killed\n\nFrom `kill -9` of a worker to the next step that is finished: the MNIST "
      "network, {} workers on this machine with 12 examples each. One worker after the other is killed in "
      "the middle of a step and started again, 20 to 39 steps after all have come together; {} alternating "
      "rounds (`./dev bench survival`).\n\n"
      "- Two hosts: network namespaces with two workers each and a cable of 1 Gbit/s, which one launcher "
      "starts (`tutti run -H`).\n"
      "- torchrun starts all workers again, from a checkpoint after every 20 steps "
      "(`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`, without which restarts hang: pytorch#135712).\n"
      "- torchft 0.2.0: the other workers go on without the step in flight, as soon as a timeout has passed: "
      "5 s "
      "as in its example, or 0.5 s. Gradients are averaged by `Manager.allreduce`, since its "
      "`DistributedDataParallel` ends all workers when one is lost.\n\n"
      "The last two columns are means for one kill: steps made again besides the one in flight, and steps "
      "given "
      "up with their examples.\n\n| | kills | nobody went on | least | median | most | made again | given up "
      "|\n|---|---|---|---|---|---|---|---|\n",
      kWorkers, kRounds);
  measure_repairs(bin, kRounds, kKills, true);
  fmt::print(
      "\nThe cost of being ready, with two workers, batches of 50, and nobody killed; medians of {} "
      "alternating rounds "
      "of 150 steps. Over shared memory each worker updates a part of the weights; with --min it keeps the "
      "optimiser's state before the step besides, where the others find it. Over TCP each updates all "
      "weights.\n\n| | images/s | with --min 1 | cost "
      "|\n|---|---|---|---|\n",
      kUndisturbedRounds);
  std::vector<bench::Side> sides;
  for (const char* comm : {"shm", "tcp"}) {
    for (const char* flags : {"", "--min 1"})
      sides.push_back(undisturbed(std::string(comm) + flags, bin, flags, comm));
  }
  const auto measured = bench::measure(sides, kUndisturbedRounds);
  for (const char* comm : {"shm", "tcp"}) {
    const double without = measured.at(comm).per_second;
    const double ready = measured.at(std::string(comm) + "--min 1").per_second;
    fmt::print("| {} | {:.0f} | {:.0f} | {:.1f} % |\n", comm, without, ready, 100 * (1 - ready / without));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "train") return train(argc - 1, argv + 1);
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string bin = self.parent_path().string();
  if (argc > 3 && std::string(argv[1]) == "repairs")
    measure_repairs(bin, std::stoi(argv[2]), std::stoi(argv[3]), false);
  else
    measure_all(bin);
  return 0;
}

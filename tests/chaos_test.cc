// An adversary with a seed kills, stops and continues workers, and the launcher of a second node, while they
// train: the weights always have the
// bits of a training that nobody has disturbed. TUTTI_TEST_CHAOS="100..300" runs other seeds, with more
// events (`./dev chaos`).
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/together.h"
#include "tutti/base/ports.h"
#include "tutti/base/text.h"

namespace tutti::testing::chaos_test {
namespace {

struct Plan {
  int64_t begin = 0;
  int64_t end = 4;
  int events = 5;
  std::string steps = "400";
};

Plan plan() {
  const char* const text = std::getenv("TUTTI_TEST_CHAOS");
  if (text == nullptr) return {};
  const std::string range = text;
  const size_t dots = range.find("..");
  return {parse_int(range.substr(0, dots)).value(), parse_int(range.substr(dots + 2)).value(), 20, "3000"};
}

std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> all;
  std::ifstream children(fmt::format("/proc/{0}/task/{0}/children", parent));
  for (pid_t child = 0; children >> child;) {
    std::ifstream command(fmt::format("/proc/{}/cmdline", child));
    std::string name;
    std::getline(command, name, '\0');
    if (name.ends_with("together_program")) all.push_back(child);
  }
  return all;
}

// A job of four workers, on one node or on two, each with a launcher. The second one comes again when it has
// ended.
class ChaosJob {
 public:
  ChaosJob(bool two_nodes, Flags launch, Flags program)
      : two_nodes_(two_nodes), launch_(std::move(launch)), program_(std::move(program)) {
    launchers_.resize(two_nodes ? 2 : 1);
    for (size_t node = 0; node < launchers_.size(); ++node) start(node);
  }

  bool has_ended() const { return state_of(launchers_[0]->pid()) == 'Z'; }
  // With the servers, whose program is the same.
  std::vector<pid_t> workers() const {
    std::vector<pid_t> all;
    for (const auto& launcher : launchers_) {
      for (const pid_t pid : children_of(launcher->pid())) all.push_back(pid);
    }
    return all;
  }
  // Returns 0 with one node.
  pid_t second_launcher() const { return two_nodes_ ? launchers_[1]->pid() : 0; }
  void restart_second() {
    if (two_nodes_ && state_of(second_launcher()) == 'Z') start(1);
  }
  // Returns the exit code of the first launcher.
  int wait() {
    while (two_nodes_ && !has_ended()) {
      restart_second();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    if (two_nodes_) kill(second_launcher(), SIGTERM);  // it may wait for a job that has ended
    return launchers_[0]->wait();
  }
  const std::string& err() const { return launchers_[0]->err(); }

 private:
  void start(size_t node) {
    Flags command = two_nodes_ ? launcher_of_node(static_cast<int>(node), fmt::format("127.0.0.1:{}", port_))
                               : Flags{program_path("tutti"), "run"};
    command = with(command, {"-n", two_nodes_ ? "2" : "4", "--min", "1", "--restarts", "1000"});
    command = with(command, launch_);
    command = with(command, {"--", together_program(), "--threads", "1"});
    launchers_[node] = std::make_unique<RunningProgram>(
        with(command, program_), Flags{"TUTTI_TIMEOUT=5", "TUTTI_SECRET=ours"}, Crashes::AskedFor);
  }

  const bool two_nodes_;
  const Flags launch_;
  const Flags program_;
  const int port_ = free_ports(1).front();
  std::vector<std::unique_ptr<RunningProgram>> launchers_;
};

// Acts until the job has ended, or until there were enough events. Returns their number.
int disturb(ChaosJob& job, std::mt19937_64& random, int events) {
  constexpr int kLongest = 600;  // milliseconds between two events
  int done = 0;
  while (done < events && !job.has_ended()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + random() % kLongest));
    job.restart_second();
    const std::vector<pid_t> workers = job.workers();
    if (workers.empty()) continue;
    constexpr int kOneIn = 6;
    const bool is_launcher = random() % kOneIn == 0 && job.second_launcher() > 0;
    const pid_t victim = is_launcher ? job.second_launcher() : workers[random() % workers.size()];
    const bool stops = random() % kOneIn == 0;
    if (kill(victim, stops ? SIGSTOP : SIGKILL) == 0) ++done;
    if (stops && (is_launcher || random() % 2 == 0)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % (3 * kLongest)));
      kill(victim, SIGCONT);
    }
  }
  return done;
}

bool has_servers(int64_t seed) { return seed % 4 == 3; }

Flags flags_of(int64_t seed, const TestFolder& folder) {
  Flags flags = {"--net", "normed", "--lanes", "8", "--batch", "4", "--timeout", "5"};
  if (seed / 2 % 2 != 0) flags = with(flags, {"--comm", "tcp"});
  if (seed / 4 % 2 != 0) flags = with(flags, {"--own-loop"});
  if (seed % 3 != 0) flags = with(flags, {"--audit", "2"});  // no change of the workers is a wrong result
  if (has_servers(seed)) flags = with(flags, {"--strategy", "ps-sync"});
  if (seed / 8 % 2 != 0 || has_servers(seed))
    flags = with(flags, {"--logdir", folder / fmt::format("run-{}", seed), "--checkpoint-every", "50"});
  return flags;
}

TEST(Chaos, ends_with_the_bits_of_an_undisturbed_training) {
  const TestFolder folder;
  const Plan plan = chaos_test::plan();
  const Flags steps = {"--steps", plan.steps};
  const std::string expected =
      hash_of(on_workers(1, with({"--net", "normed", "--lanes", "8", "--batch", "4"}, steps)), folder);
  int events = 0;
  for (int64_t seed = plan.begin; seed < plan.end; ++seed) {
    SCOPED_TRACE(fmt::format("again with TUTTI_TEST_CHAOS={}..{}", seed, seed + 1));
    std::mt19937_64 random(static_cast<uint64_t>(seed));
    const std::string report = folder / fmt::format("report-{}.json", seed);
    ChaosJob job(seed % 2 == 0, has_servers(seed) ? Flags{"--ps", "2"} : Flags{},
                 with({"--report", report}, with(flags_of(seed, folder), steps)));
    const int done = disturb(job, random, plan.events);
    events += done;
    EXPECT_EQ(job.wait(), 0) << job.err();
    ASSERT_TRUE(std::filesystem::exists(report)) << job.err();
    EXPECT_EQ(json_of(report).at("weights_sha256"), expected) << job.err();
    fmt::print("seed {}: {} events\n", seed, done);
  }
  EXPECT_GT(events, 0);
}

}  // namespace
}  // namespace tutti::testing::chaos_test

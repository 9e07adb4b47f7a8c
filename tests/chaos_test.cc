// An adversary with a seed kills, stops and continues workers while they train: the weights always have the
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

// Acts until the program has ended, or until there were enough events. Returns their number.
int disturb(RunningProgram& launcher, std::mt19937_64& random, int events) {
  constexpr int kLongest = 600;  // milliseconds between two events
  int done = 0;
  while (done < events && state_of(launcher.pid()) != 'Z') {
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + random() % kLongest));
    const std::vector<pid_t> workers = children_of(launcher.pid());
    if (workers.empty()) continue;
    const pid_t victim = workers[random() % workers.size()];
    constexpr int kOneIn = 6;
    const bool stops = random() % kOneIn == 0;
    if (kill(victim, stops ? SIGSTOP : SIGKILL) == 0) ++done;
    if (stops && random() % 2 == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % (3 * kLongest)));
      kill(victim, SIGCONT);
    }
  }
  return done;
}

Flags flags_of(int64_t seed, const TestFolder& folder) {
  Flags flags = {"--net", "normed", "--lanes", "8", "--batch", "4", "--timeout", "5"};
  if (seed % 2 != 0) flags = with(flags, {"--comm", "tcp"});
  if (seed / 2 % 2 != 0) flags = with(flags, {"--own-loop"});
  if (seed % 3 != 0) flags = with(flags, {"--audit", "2"});  // no change of the workers is a wrong result
  if (seed / 4 % 2 != 0)
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
    Flags command = {program_path("tutti"), "run", "-n", "4", "--min", "1", "--restarts", "1000", "--"};
    command = with(command, {together_program(), "--threads", "1", "--report", report});
    RunningProgram launcher(with(with(command, flags_of(seed, folder)), steps), {"TUTTI_TIMEOUT=5"},
                            Crashes::AskedFor);
    const int done = disturb(launcher, random, plan.events);
    events += done;
    EXPECT_EQ(launcher.wait(), 0) << launcher.err();
    ASSERT_TRUE(std::filesystem::exists(report)) << launcher.err();
    EXPECT_EQ(json_of(report).at("weights_sha256"), expected) << launcher.err();
    fmt::print("seed {}: {} events\n", seed, done);
  }
  EXPECT_GT(events, 0);
}

}  // namespace
}  // namespace tutti::testing::chaos_test

// Tests bad days: servers, workers and the chief are killed at random moments, repeatedly; in the soak tests
// on a machine that is busy with other work. TUTTI_TEST_SEED=N repeats the choices of one run, though not the
// exact moments.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <random>
#include <thread>

#include <gmock/gmock.h>

#include "tests/served.h"

namespace tutti::testing::servers_slow_test {
namespace {

using std::chrono::milliseconds;

constexpr int kServers = 2;
constexpr int kWorkers = 3;
constexpr int kMostOfOne = 13;  // kills in one job
// A job that takes longer than this hangs.
constexpr std::chrono::seconds kDeadline{240};
// The maximum time between two kills of a job: some tasks are killed while another is still restarting.
constexpr milliseconds kLongestPeace{2500};

uint64_t seed_of_this_run() {
  const char* asked = std::getenv("TUTTI_TEST_SEED");
  const uint64_t seed = asked == nullptr ? std::random_device()() : std::strtoull(asked, nullptr, 10);
  std::printf("TUTTI_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  return seed;
}

// Keeps every core busy.
class Load {
 public:
  Load() {
    for (unsigned core = 0; core < std::thread::hardware_concurrency(); ++core)
      busy_.push_back(std::make_unique<RunningProgram>(Flags{"/bin/sh", "-c", "while :; do :; done"}));
  }

 private:
  std::vector<std::unique_ptr<RunningProgram>> busy_;
};

class BadDay : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { random.seed(seed_of_this_run()); }

  static int up_to(int number) { return std::uniform_int_distribution<>(0, number)(random); }

  // Kills random tasks of a job `kills` times, or until it has ended, which must succeed. Returns its report.
  nlohmann::json survive(const std::string& name, const Flags& flags, int kills) {
    const std::string report = folder_ / name + ".json";
    // Allows more than one restart per kill: a task that has waited too long for a killed one gives up, too.
    ServedRun job(name, served(kServers, kWorkers,
                               with(flags, {"--logdir", folder_ / name, "--checkpoint-every", "50",
                                            "--timeout", "20", "--start-timeout", "40", "--report", report}),
                               {"--restarts", "1000"}));
    auto exit_code = std::async(std::launch::async, [&] { return job.run().wait(); });
    int killed = 0;
    while (killed < kills &&
           exit_code.wait_for(milliseconds(up_to(kLongestPeace.count()))) != std::future_status::ready) {
      if (kill_any(job)) ++killed;
    }
    EXPECT_EQ(exit_code.wait_for(kDeadline), std::future_status::ready) << name << " hangs";
    if (exit_code.wait_for(milliseconds(0)) != std::future_status::ready) kill(job.run().pid(), SIGTERM);
    const int code = exit_code.get();
    std::printf("%s: %d of %d killed, exit code %d\n", name.c_str(), killed, kills, code);
    // A task that is killed after it and the servers have finished is not needed any more.
    const bool too_late = job.run().err().find("the job is done") != std::string::npos;
    EXPECT_TRUE(code == 0 || too_late) << job.run().err();
    killed_ += killed;
    if (!std::filesystem::exists(report)) {
      ADD_FAILURE() << "no report: " << job.run().err();
      return {};
    }
    last_words_ = job.run().err();
    return json_of(report);
  }

  // Runs as many jobs as it takes for so many kills.
  void survive_in_lock_step(int kills, int steps) {
    const Flags flags = {"--net", "normed", "--lanes", "6", "--batch", "8", "--steps", std::to_string(steps)};
    const std::string alone = hash_of(on_workers(1, flags), folder_);
    for (int job = 0; killed_ < kills; ++job) {
      const nlohmann::json report =
          survive(fmt::format("sync{}", job), with(flags, {"--strategy", "ps-sync"}),
                  std::min(kMostOfOne, kills - killed_));
      ASSERT_EQ(report.value("weights_sha256", ""), alone) << last_words_;
      EXPECT_EQ(report.value("examples", 0), steps * 6 * 8) << last_words_;
    }
  }
  // Updates come in another order in each run, so the accuracy varies: half as many steps may end just below
  // the limit.
  void survive_in_no_step(int kills) {
    constexpr int kSteps = 6000;
    const Flags flags = {"--net", "odd", "--batch", "8", "--steps", std::to_string(kSteps), "--evaluate"};
    for (int job = 0; killed_ < kills; ++job) {
      const nlohmann::json report =
          survive(fmt::format("async{}", job), flags, std::min(kMostOfOne, kills - killed_));
      ASSERT_EQ(report.value("steps", 0), kSteps) << last_words_;
      EXPECT_EQ(report.value("examples", 0), kSteps * 8) << last_words_;
      EXPECT_GT(report["metrics"].value("accuracy", 0.0), 0.7) << last_words_;
    }
  }

 private:
  const TestFolder folder_;
  std::string last_words_;
  int killed_ = 0;

  static bool kill_any(const ServedRun& job) {
    const int task = up_to(kServers + kWorkers - 1);
    return task < kServers ? job.try_to_kill("ps", task) : job.try_to_kill("worker", task - kServers);
  }

  static std::mt19937_64 random;
};

std::mt19937_64 BadDay::random;

TEST_F(BadDay, in_lock_step_ends_with_the_bits_of_a_good_one) { survive_in_lock_step(3, 300); }
TEST_F(BadDay, in_no_step_ends_after_as_many_as_asked_for_and_has_learnt) { survive_in_no_step(3); }

class BadDaySoak : public BadDay {
 private:
  const Load load_;
};
TEST_F(BadDaySoak, in_lock_step_ends_with_the_bits_of_a_good_one) { survive_in_lock_step(26, 600); }
TEST_F(BadDaySoak, in_no_step_ends_after_as_many_as_asked_for_and_has_learnt) { survive_in_no_step(26); }

}  // namespace
}  // namespace tutti::testing::servers_slow_test

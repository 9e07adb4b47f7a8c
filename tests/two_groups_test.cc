// Tests the examples of groups: two models in one job, in a program with a main() of its own, by all-reduce
// and with shared parameter servers; and collectives without a model.
#include <csignal>
#include <filesystem>
#include <map>
#include <numbers>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/served.h"
#include "tutti/base/file.h"
#include "tutti/base/ports.h"

namespace tutti::testing::two_groups_test {
namespace {

using ::testing::HasSubstr;

Flags command(int workers, const std::string& folder, int steps, const Flags& launcher = {},
              const std::string& strategy = "") {
  Flags command = with({program_path("tutti"), "run", "-n", std::to_string(workers)}, launcher);
  command = with(command, {"--", program_path("two_groups"), folder, std::to_string(steps)});
  return strategy.empty() ? command : with(command, {strategy});
}

nlohmann::json report_in(const std::string& folder, const std::string& name) {
  return nlohmann::json::parse(read_file(folder + "/" + name + ".json"));
}

using Hashes = std::map<std::string, std::string>;

// Returns the hashes of both models, from the reports of a job that has ended.
Hashes hashes_in(const std::string& folder, int workers, int steps) {
  Hashes hashes;
  for (const std::string name : {"narrow", "wide"}) {
    const nlohmann::json report = report_in(folder, name);
    EXPECT_EQ(report.at("steps"), steps) << name;
    EXPECT_EQ(report.at("world"), workers / 2) << name;
    hashes[name] = report.at("weights_sha256").get<std::string>();
  }
  return hashes;
}

Hashes weights_after(int workers, const std::string& folder, int steps, const Flags& launcher = {},
                     const std::string& strategy = "") {
  const ProgramResult result = run_program(command(workers, folder, steps, launcher, strategy));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  Hashes hashes = hashes_in(folder, workers, steps);
  for (const auto& [name, hash] : hashes) EXPECT_THAT(result.out, HasSubstr(hash)) << name;
  return hashes;
}

TEST(TwoGroups, train_a_model_each_with_the_bits_of_any_number_of_workers) {
  const TestFolder folder;
  const auto two = weights_after(2, folder / "two", 60);
  EXPECT_NE(two.at("narrow"), two.at("wide"));
  EXPECT_EQ(weights_after(4, folder / "four", 60), two);
}

TEST(TwoGroups, resume_each_from_its_own_checkpoints) {
  const TestFolder folder;
  const auto straight = weights_after(4, folder / "straight", 60);
  weights_after(4, folder / "run", 25);
  EXPECT_TRUE(std::filesystem::exists(folder / "run/narrow/ckpt-20"));
  EXPECT_TRUE(std::filesystem::exists(folder / "run/wide/ckpt-25"));
  EXPECT_EQ(weights_after(2, folder / "run", 60), straight);
  EXPECT_EQ(report_in(folder / "run", "wide").at("restarts"), 1);
}

// Both groups end, since their job does; each resumes from the checkpoint that it has.
TEST(TwoGroups, resume_after_all_were_killed) {
  const TestFolder folder;
  const auto straight = weights_after(4, folder / "straight", 1000);
  {
    RunningProgram killed(command(4, folder / "run", 1000));
    ASSERT_TRUE(eventually([&] {
      return std::filesystem::exists(folder / "run/narrow/latest") &&
             std::filesystem::exists(folder / "run/wide/latest");
    }));
    ::kill(killed.pid(), SIGKILL);
    killed.wait();
  }
  EXPECT_EQ(weights_after(4, folder / "run", 1000), straight);
}

TEST(TwoGroups, are_refused_with_a_master) {
  const TestFolder folder;
  const ProgramResult result = run_program(command(2, folder / "run", 10, {}, "in-graph"));
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("--strategy in-graph cannot be used for a group of the workers"));
}

TEST(TwoGroupsOnServers, in_lock_step_give_each_model_the_bits_that_it_has_alone) {
  const TestFolder folder;
  const Hashes alone = weights_after(2, folder / "alone", 60);
  for (const char* servers : {"1", "2"})
    EXPECT_EQ(weights_after(4, folder / servers, 60, {"--ps", servers}, "ps-sync"), alone) << servers;
}

TEST(TwoGroupsOnServers, train_at_any_speed_by_default) {
  const TestFolder folder;
  weights_after(4, folder / "run", 60, {"--ps", "2"});
  for (const char* name : {"narrow", "wide"})
    EXPECT_EQ(report_in(folder / "run", name).at("strategy"), "ps-async") << name;
}

TEST(TwoGroupsOnServers, resume_each_from_its_own_checkpoints) {
  const TestFolder folder;
  const Hashes straight = weights_after(2, folder / "straight", 60);
  weights_after(4, folder / "run", 25, {"--ps", "2"}, "ps-sync");
  EXPECT_TRUE(std::filesystem::exists(folder / "run/narrow/ckpt-20"));
  EXPECT_EQ(weights_after(2, folder / "run", 60, {"--ps", "1"}, "ps-sync"), straight);
  EXPECT_EQ(report_in(folder / "run", "wide").at("restarts"), 1);
}

struct Victim {
  const char* job;
  int index;
};

class TwoGroupsOnServersThatLose : public ::testing::TestWithParam<Victim> {};
INSTANTIATE_TEST_SUITE_P(Groups, TwoGroupsOnServersThatLose,
                         ::testing::Values(Victim{"worker", 1}, Victim{"worker", 2}, Victim{"ps", 0}),
                         [](const auto& info) {
                           return fmt::format("{}_{}", info.param.job, info.param.index);
                         });

TEST_P(TwoGroupsOnServersThatLose, a_task_keep_the_bits_of_both_models) {
  constexpr int kSteps = 1000;
  const auto [job, index] = GetParam();
  const TestFolder folder;
  static const Hashes kAlone = weights_after(2, folder / "alone", kSteps);
  ServedRun run(fmt::format("{}{}", job, index),
                command(4, folder / "run", kSteps, {"--ps", "2", "--restarts", "1"}, "ps-sync"));
  ASSERT_TRUE(eventually([&] {
    return std::filesystem::exists(folder / "run/narrow/latest") &&
           std::filesystem::exists(folder / "run/wide/latest");
  }));
  run.kill(job, index);
  EXPECT_EQ(run.run().wait(), 0) << run.run().err();
  EXPECT_EQ(hashes_in(folder / "run", 4, kSteps), kAlone) << run.run().err();
  if (job == std::string("ps")) return;
  for (const char* name : {"narrow", "wide"})
    EXPECT_EQ(report_in(folder / "run", name).at("lost_steps"), 0) << name;
}

// The tasks of a job whose processes are started one by one: a server, and four workers in two groups.
class FourWorkers {
 public:
  std::unique_ptr<RunningProgram> start(const std::string& job, int index, const std::string& folder,
                                        int steps) const {
    const nlohmann::json config = {{"cluster", {{"ps", addresses(0, 1)}, {"worker", addresses(1, 5)}}},
                                   {"task", {{"type", job}, {"index", index}}}};
    return std::make_unique<RunningProgram>(
        Flags{program_path("two_groups"), folder, std::to_string(steps), "ps-sync"},
        std::vector<std::string>{"TF_CONFIG=" + config.dump()});
  }

 private:
  std::vector<std::string> addresses(size_t begin, size_t end) const {
    std::vector<std::string> all;
    for (size_t i = begin; i < end; ++i) all.push_back(fmt::format("127.0.0.1:{}", ports_[i]));
    return all;
  }
  const std::vector<int> ports_ = free_ports(5);
};

TEST(TwoGroupsOnServers, end_alone_where_two_workers_differ_and_may_start_again) {
  const TestFolder folder;
  const Hashes alone = weights_after(2, folder / "alone", 60);
  const FourWorkers tasks;
  const auto start = [&](int index, int steps) {
    return tasks.start("worker", index, folder / "run", steps);
  };
  const auto server = tasks.start("ps", 0, folder / "run", 60);
  const auto chief = start(1, 60);
  const auto wrong = start(3, 70);
  for (const auto* worker : {&chief, &wrong}) {
    EXPECT_EQ((*worker)->wait(), 1) << (*worker)->err();
    EXPECT_THAT((*worker)->err(), HasSubstr("the group of worker/1 and worker/3: "));
  }
  const auto narrow_chief = start(0, 60);
  const auto narrow = start(2, 60);
  for (const auto* worker : {&narrow_chief, &narrow}) EXPECT_EQ((*worker)->wait(), 0) << (*worker)->err();
  const auto again = start(1, 60);
  const auto right = start(3, 60);
  for (const auto* worker : {&again, &right}) EXPECT_EQ((*worker)->wait(), 0) << (*worker)->err();
  EXPECT_EQ(server->wait(), 0) << server->err();
  EXPECT_EQ(hashes_in(folder / "run", 4, 60), alone);
}

double estimate_in(const ProgramResult& result) {
  const std::string text = "pi is about ";
  const size_t at = result.out.find(text);
  return at == std::string::npos ? 0 : std::stod(result.out.substr(at + text.size()));
}

TEST(Ring, has_the_same_sums_over_every_backend) {
  std::set<double> estimates;
  for (const char* comm : {"shm", "tcp"}) {
    const ProgramResult result = run_program({program_path("tutti"), "run", "-n", "3", "--",
                                              program_path("ring"), "--comm", comm, "--logdir", ""});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    for (const char* line :
         {"rank 0 received 2", "rank 1 received 0", "rank 2 received 1", "half 1: at most "})
      EXPECT_THAT(result.out, HasSubstr(line));
    estimates.insert(estimate_in(result));
  }
  EXPECT_EQ(estimates.size(), 1U);
  EXPECT_NEAR(*estimates.begin(), std::numbers::pi, 0.01);
}

TEST(Ring, of_one_worker_is_a_program_like_any_other) {
  const TestFolder folder;
  const ProgramResult result =
      run_program({program_path("ring"), "--timeline", folder / "t.json", "--logdir", ""});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NEAR(estimate_in(result), std::numbers::pi, 0.01);
  EXPECT_TRUE(std::filesystem::exists(folder / "t.json"));
}

}  // namespace
}  // namespace tutti::testing::two_groups_test

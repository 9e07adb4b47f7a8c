// Tests the examples of groups: two models in one job, in a program with a main() of its own; and collectives
// without a model.
#include <csignal>
#include <filesystem>
#include <map>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/together.h"
#include "tutti/base/file.h"

namespace tutti::testing {
namespace {

using ::testing::HasSubstr;

Flags command(int workers, const std::string& folder, int steps) {
  return {
      program_path("tutti"), "run", "-n", std::to_string(workers), "--", program_path("two_groups"), folder,
      std::to_string(steps)};
}

nlohmann::json report_in(const std::string& folder, const std::string& name) {
  return nlohmann::json::parse(read_file(folder + "/" + name + ".json"));
}

// Returns the hashes of both models after the job has ended.
std::map<std::string, std::string> weights_after(int workers, const std::string& folder, int steps) {
  const ProgramResult result = run_program(command(workers, folder, steps));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::map<std::string, std::string> hashes;
  for (const std::string name : {"narrow", "wide"}) {
    const nlohmann::json report = report_in(folder, name);
    EXPECT_EQ(report.at("steps"), steps) << name;
    EXPECT_EQ(report.at("world"), workers / 2) << name;
    EXPECT_THAT(result.out, HasSubstr(report.at("weights_sha256").get<std::string>()));
    hashes[name] = report.at("weights_sha256").get<std::string>();
  }
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
  const auto straight = weights_after(4, folder / "straight", 3000);
  {
    RunningProgram killed(command(4, folder / "run", 3000));
    while (!std::filesystem::exists(folder / "run/narrow/latest") ||
           !std::filesystem::exists(folder / "run/wide/latest"))
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    ::kill(killed.pid(), SIGKILL);
    killed.wait();
  }
  EXPECT_EQ(weights_after(4, folder / "run", 3000), straight);
}

TEST(Ring, has_the_same_sums_over_every_backend) {
  std::set<std::string> estimates;
  for (const char* comm : {"shm", "tcp"}) {
    const ProgramResult result = run_program({program_path("tutti"), "run", "-n", "3", "--",
                                              program_path("ring"), "--comm", comm, "--logdir", ""});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    for (const char* line :
         {"rank 0 received 2", "rank 1 received 0", "rank 2 received 1", "half 1: at most "})
      EXPECT_THAT(result.out, HasSubstr(line));
    estimates.insert(result.out.substr(result.out.find("pi is about "), 18));
  }
  EXPECT_EQ(estimates.size(), 1U);
  EXPECT_THAT(*estimates.begin(), HasSubstr("pi is about 3.14"));
}

TEST(Ring, of_one_worker_is_a_program_like_any_other) {
  const TestFolder folder;
  const ProgramResult result =
      run_program({program_path("ring"), "--timeline", folder / "t.json", "--logdir", ""});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("pi is about 3.14"));
  EXPECT_TRUE(std::filesystem::exists(folder / "t.json"));
}

}  // namespace
}  // namespace tutti::testing

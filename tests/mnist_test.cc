// Tests the first example as users run it: a process that is stopped, killed, started again and given invalid
// arguments.
#include <filesystem>
#include <fstream>
#include <signal.h>
#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/few_digits.h"
#include "tests/tool.h"
#include "tutti/base/error.h"

namespace tutti::testing::mnist_test {
namespace {

using ::testing::HasSubstr;

// On few digits, unless the flags say otherwise.
Words mnist(const Words& flags) {
  return Words{program_path("mnist"), "--threads", "1", "--seed", "3", "--data", few_digits()} + flags;
}

nlohmann::json report_of(const std::string& path) {
  std::ifstream in(path);
  return nlohmann::json::parse(in);
}

std::string straight_hash(const TestFolder& folder, const std::string& steps) {
  const auto result = run_program(mnist({"--steps", steps, "--report", folder / "straight.json"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return report_of(folder / "straight.json").at("weights_sha256");
}

TEST(Mnist, resumes_with_the_same_bits_after_kill_9) {
  const TestFolder folder;
  const std::string logdir = folder / "run";
  {
    RunningProgram first(mnist({"--steps", "100000", "--logdir", logdir, "--checkpoint-every", "10"}));
    ASSERT_TRUE(eventually([&] { return std::filesystem::exists(logdir + "/ckpt-10"); }));
    kill(first.pid(), SIGKILL);
    EXPECT_EQ(first.wait(), 128 + SIGKILL);
  }
  const std::vector<std::string> command =
      mnist({"--steps", "20", "--logdir", logdir, "--report", folder / "report.json"});
  const auto second = run_program(command);
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(second.err, HasSubstr("resumed from"));
  const auto report = report_of(folder / "report.json");
  // It may have made more than ten steps before it died; then the run ends at that step.
  const auto steps = report.at("steps").get<int64_t>();
  EXPECT_EQ(report.at("restarts"), 1);
  EXPECT_EQ(report.at("weights_sha256"), straight_hash(folder, std::to_string(steps)));

  // The run is complete: once more reports the same.
  EXPECT_EQ(run_program(command).exit_code, 0);
  EXPECT_EQ(report_of(folder / "report.json").at("loss"), report.at("loss"));
  EXPECT_TRUE(report.at("loss").is_number());
}

TEST(Mnist, resumes_with_other_lanes_only_from_the_weights) {
  const TestFolder folder;
  const std::string logdir = folder / "run";
  const auto first = run_program(mnist({"--steps", "3", "--logdir", logdir}));
  EXPECT_EQ(first.exit_code, 0) << first.err;
  const std::vector<std::string> other = {"--steps", "2", "--lanes", "2", "--logdir", logdir};
  const auto refused = run_program(mnist(other));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--resume weights"));
  const auto anew = run_program(mnist(other + std::vector<std::string>{"--resume", "weights"}));
  EXPECT_EQ(anew.exit_code, 0) << anew.err;
  EXPECT_TRUE(std::filesystem::exists(logdir + "/ckpt-2"));
}

class MnistStopped : public ::testing::TestWithParam<int> {};

// A terminal that is closed sends SIGHUP twice.
TEST_P(MnistStopped, leaves_a_checkpoint_from_which_the_same_bits_follow) {
  const int signal = GetParam();
  const TestFolder folder;
  const std::string logdir = folder / "run";
  int64_t stopped_at = 0;
  {
    // Saves a checkpoint every step, so that one appears soon; the test needs the one that the signal
    // requests.
    RunningProgram first(mnist({"--steps", "100000", "--logdir", logdir, "--checkpoint-every", "1"}));
    ASSERT_TRUE(eventually([&] { return std::filesystem::exists(logdir + "/ckpt-2"); }));
    kill(first.pid(), signal);
    if (signal == SIGHUP) kill(first.pid(), signal);
    EXPECT_EQ(first.wait(), 128 + signal);
    EXPECT_THAT(first.err(), HasSubstr("stopped by " + signal_name(signal) + " after step"));
    EXPECT_THAT(first.err(), HasSubstr("run the program again to continue"));
    const auto at = first.err().find("after step ") + 11;
    stopped_at = std::stoll(first.err().substr(at));
  }
  const std::string end = std::to_string(stopped_at + 5);
  const auto second =
      run_program(mnist({"--steps", end, "--logdir", logdir, "--report", folder / "report.json"}));
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(second.err, HasSubstr("ckpt-" + std::to_string(stopped_at)));
  EXPECT_EQ(report_of(folder / "report.json").at("weights_sha256"), straight_hash(folder, end));
}

INSTANTIATE_TEST_SUITE_P(BySignal, MnistStopped, ::testing::Values(SIGTERM, SIGHUP),
                         [](const auto& info) { return signal_name(info.param); });

struct Nonsense {
  std::vector<std::string> flags;
  int exit_code;
  std::string says;
};

TEST(Mnist, answers_nonsense_with_one_line_that_helps) {
  const TestFolder folder;
  std::ofstream(folder / "file") << "x";
  std::filesystem::create_directory(folder / "empty");
  const std::vector<Nonsense> all = {
      {{"--bacth", "4"}, 2, "did you mean '--batch'"},
      {{"--precision", "fp8"}, 2, "fp32"},
      {{"--batch", "0"}, 2, "--batch"},
      {{"--data", folder / "empty"}, 2, "train-images"},
      {{"--logdir", folder / "file/run", "--steps", "1"}, 2, folder / "file/run: Not a directory; a part of"},
      {{"--logdir", folder / "file", "--steps", "1"}, 2, folder / "file: Not a directory; a part of"},
      {{"--report", folder / "file/r.json"}, 2, folder / "file/r.json: Not a directory; a part of"},
      {{"--report", "/proc/r.json"}, 2, "writing /proc/r.json: "},
      {{"--resume", "must", "--logdir", folder / "none"}, 2, "no checkpoint"},
      {{"--profile-steps", "5..2", "--logdir", folder / "p"}, 2, "10..12"},
      {{"--profile-steps", "", "--logdir", folder / "p"}, 2, "10..12"},
      {{"--timeout", "1e10"}, 2, "above 0, at most 1000000"},
      {{"--feed-timeout", "1e20"}, 2, "above 0, at most 1000000"},
      {{"--start-timeout", "nan"}, 2, "above 0, at most 1000000"},
      {{"--lanes", "9223372036854775807"}, 2, "0 to 1048576"},
      {{"--learning-rate", "-1"}, 2, "0 or more"},
      {{"--decay-steps", "-1"}, 2, "0 to 1000000000000"},
      {{"--device", "cuda:7"}, 2, "cuda"},
      {{"--job_name", "worker"}, 2, "cluster_spec"},
  };
  for (const Nonsense& nonsense : all) {
    const auto result = run_program(mnist(nonsense.flags));
    EXPECT_EQ(result.exit_code, nonsense.exit_code) << result.err;
    EXPECT_THAT(result.err, HasSubstr(nonsense.says));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
  const auto variable = run_program(mnist({"--steps", "1"}), {"TUTTI_LANS=2"});
  EXPECT_EQ(variable.exit_code, 2);
  EXPECT_THAT(variable.err, HasSubstr("TUTTI_LANES"));
}

TEST(Mnist, flag_goes_before_environment_before_file) {
  const TestFolder folder;
  std::ofstream(folder / "run.json") << R"({"steps": 3, "batch": 7, "seed": 5})";
  const auto result =
      run_program({program_path("mnist"), "--config", folder / "run.json", "--steps", "1", "--data",
                   few_digits(), "--threads", "1", "--report", folder / "report.json"},
                  {"TUTTI_BATCH=9"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto report = report_of(folder / "report.json");
  EXPECT_EQ(report.at("steps"), 1);
  EXPECT_EQ(report.at("examples"), 9);
}

TEST(Mnist, help_lists_every_flag_and_exits_well) {
  const auto result = run_program(mnist({"--help"}));
  EXPECT_EQ(result.exit_code, 0);
  for (const char* flag : {"--lanes", "--resume", "--cluster_spec", "--learning-rate"})
    EXPECT_THAT(result.out, HasSubstr(flag));
}

// As the first tutorials do: a line for step 0, and the accuracies on the batch and on the test digits after
// the same steps.
TEST(Mnist, prints_a_line_for_step_0_and_the_test_accuracy_at_the_same_intervals) {
  const auto result = run_program(mnist({"--steps", "6", "--summary-every", "3", "--test-every", "3"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* step : {"0", "3", "6"}) {
    EXPECT_THAT(result.err, HasSubstr(std::string("step ") + step + "  accuracy (batch) "));
    EXPECT_THAT(result.err, HasSubstr(std::string("test after step ") + step + ":  accuracy "));
  }
  // The last line of these has the accuracy that is printed at the end.
  const size_t at = result.err.find("accuracy ", result.err.find("test after step 6:"));
  EXPECT_THAT(result.out, HasSubstr("test accuracy " + result.err.substr(at + 9, 6) + " after 6 steps"));
  EXPECT_THAT(run_program(mnist({"--steps", "2"})).err, ::testing::Not(HasSubstr("test after step")));
}

TEST(Mnist, says_which_flags_change_nothing) {
  const TestFolder folder;
  const auto result = run_program(
      mnist({"--steps", "2", "--backup", "1", "--profile-steps", "7", "--logdir", folder / "run"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("--backup does nothing"));
  EXPECT_THAT(result.err, HasSubstr("which ended after step 2, did not make step 7"));
}

// Example 08, which docs/training.md describes.
TEST(Mnist, another_program_predicts_with_its_weights) {
  const TestFolder folder;
  const auto trained = run_program(mnist({"--steps", "30", "--logdir", folder / "run"}));
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const std::string accuracy = trained.out.substr(trained.out.find("test accuracy"), 20);
  for (const std::string weights : {"run", "run/ckpt-30", "run/ckpt-30/weights.safetensors"}) {
    const auto predicted =
        run_program({program_path("predict"), folder / weights, "--threads", "1", "--data", few_digits()});
    EXPECT_EQ(predicted.exit_code, 0) << predicted.err;
    EXPECT_THAT(predicted.out, HasSubstr(accuracy));
  }
  const auto refused = run_program({program_path("predict"), folder.path()});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err, HasSubstr("subfolders with checkpoints: run"));
}

}  // namespace
}  // namespace tutti::testing::mnist_test

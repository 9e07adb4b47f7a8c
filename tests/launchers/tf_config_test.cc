// Tests training by hand: TF_CONFIG or flags tell every task who it is.
#include <csignal>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/launchers/training.h"
#include "tests/together.h"
#include "tutti/base/ports.h"

namespace tutti::testing::tf_config_test {
namespace {

using ::testing::HasSubstr;

class ByHand : public ::testing::Test {
 protected:
  ByHand() {
    for (const int port : free_ports(4)) addresses_.push_back(fmt::format("127.0.0.1:{}", port));
  }

  // Returns TF_CONFIG for a task of a cluster of one chief and three workers.
  std::string tf_config(const std::string& job, int index) const {
    const nlohmann::json config = {
        {"cluster", {{"chief", {addresses_[0]}}, {"worker", {addresses_[1], addresses_[2], addresses_[3]}}}},
        {"task", {{"type", job}, {"index", index}}}};
    return "TF_CONFIG=" + config.dump();
  }
  void start_as(const std::string& job, int index, const std::vector<std::string>& flags = {}) {
    tasks_.push_back(std::make_unique<RunningProgram>(training_.command({}, flags),
                                                      training_.environment({tf_config(job, index)})));
  }

  const Training training_;
  std::vector<std::string> addresses_;
  std::vector<std::unique_ptr<RunningProgram>> tasks_;
};

TEST_F(ByHand, a_chief_and_three_workers_end_with_the_bits_of_one) {
  // Starts the chief last, for which all others wait.
  for (const int index : {2, 1, 0}) start_as("worker", index);
  start_as("chief", 0);
  const auto results = wait_for_all(tasks_);
  for (const ProgramResult& result : results) EXPECT_EQ(result.exit_code, 0) << result.err;
  training_.expect_the_bits_of_one(results.back(), 4);
  EXPECT_THAT(results.back().err, HasSubstr("chief/0 4 workers connected over shm"));
}

// The evaluator is in no cluster, and knows nothing of the other tasks but the log directory.
TEST_F(ByHand, an_evaluator_tests_every_checkpoint) {
  const std::vector<std::string> flags = {
      "--logdir", training_.folder() / "run", "--checkpoint-every", "2", "--keep", "0"};
  for (const std::vector<std::string>& launcher :
       {std::vector<std::string>{}, {program_path("tutti"), "run", "--"}}) {
    tasks_.clear();
    const std::vector<std::string> more = launcher.empty() ? flags : flags + Words{"--resume", "never"};
    tasks_.push_back(std::make_unique<RunningProgram>(training_.command(launcher, more),
                                                      training_.environment({tf_config("evaluator", 0)})));
    for (const int index : {2, 1, 0}) start_as("worker", index, more);
    start_as("chief", 0, more);
    const auto results = wait_for_all(tasks_);
    for (const ProgramResult& result : results) EXPECT_EQ(result.exit_code, 0) << result.err;
    for (const char* step : {"2", "4", "6"})
      EXPECT_THAT(results.front().err, HasSubstr(fmt::format("test after step {}:  accuracy", step)));
    EXPECT_EQ(results.front().out, "") << "only the chief prints the result";
    std::ifstream record(training_.folder() / "run/evaluator/evaluations.json");
    EXPECT_EQ(nlohmann::json::parse(record).at("evaluations").size(), 3U);
  }
}

TEST_F(ByHand, launchers_that_add_workers_of_their_own_do_the_same) {
  // The chief's launcher first occupies the port at which the chief listens later.
  const nlohmann::json cluster = {{"chief", {addresses_[0]}}, {"worker", {addresses_[1]}}};
  for (const char* job : {"worker", "chief"}) {
    const nlohmann::json config = {{"cluster", cluster}, {"task", {{"type", job}, {"index", 0}}}};
    const std::vector<std::string> launcher = {program_path("tutti"), "run", "-n", "2", "--"};
    tasks_.push_back(std::make_unique<RunningProgram>(
        training_.command(launcher),
        training_.environment({"TF_CONFIG=" + config.dump(), "CUDA_VISIBLE_DEVICES="})));
  }
  const auto results = wait_for_all(tasks_);
  for (const ProgramResult& result : results) EXPECT_EQ(result.exit_code, 0) << result.err;
  training_.expect_the_bits_of_one(results.back(), 4);
  EXPECT_THAT(results.back().err, HasSubstr("chief/0 4 workers connected over shm"));
}

// The launcher that is killed has the list of the workers, and worker/0 beside it.
TEST_F(ByHand, launchers_go_on_without_the_first_host_and_take_it_in_again) {
  const Flags program = {"--net", "normed", "--lanes", "6", "--batch", "2", "--steps", "300"};
  const std::string report = training_.folder() / "report.json";
  const std::string slow = training_.folder().write("slow", "");
  const auto start = [&](int index) {
    const std::vector<std::string> workers(addresses_.begin(), addresses_.begin() + 3);
    const nlohmann::json config = {{"cluster", {{"worker", workers}}},
                                   {"task", {{"type", "worker"}, {"index", index}}}};
    const Flags command = Flags{program_path("tutti"), "run",       "--min",    "1",        "--",
                                together_program(),    "--threads", "1",        "--report", report,
                                "--await-world",       "3",         "--dawdle", slow} +
                          program;
    return std::make_unique<RunningProgram>(
        command, training_.environment({"TF_CONFIG=" + config.dump(), "CUDA_VISIBLE_DEVICES="}));
  };
  for (const int index : {0, 1, 2}) tasks_.push_back(start(index));
  tasks_[0]->wait_for_error("training with allreduce: 3 workers");
  kill(tasks_[0]->pid(), SIGKILL);
  tasks_[1]->wait_for_error("with 2 workers: worker/0 is gone");
  std::filesystem::remove(slow);
  tasks_[0]->wait();
  tasks_[0] = start(0);
  for (const ProgramResult& result : wait_for_all(tasks_)) EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json_of(report).value("weights_sha256", "there is none"),
            hash_of(on_workers(1, program), training_.folder()));
  EXPECT_TRUE(eventually([&] { return training_.processes().empty(); }));
}

TEST_F(ByHand, flags_do_the_same) {
  const std::string cluster = fmt::format("worker|{}", fmt::join(addresses_, ";"));
  for (const char* index : {"3", "2", "1", "0"}) {
    const auto command = training_.command({}, {"--cluster_spec", cluster, "--task_index", index});
    tasks_.push_back(std::make_unique<RunningProgram>(command, training_.environment()));
  }
  const auto results = wait_for_all(tasks_);
  for (const ProgramResult& result : results) EXPECT_EQ(result.exit_code, 0) << result.err;
  training_.expect_the_bits_of_one(results.back(), 4);
}

TEST_F(ByHand, a_worker_that_never_starts_is_named_by_all) {
  start_as("worker", 0, {"--timeout", "3"});
  start_as("worker", 1, {"--timeout", "3"});
  start_as("chief", 0, {"--timeout", "3"});
  for (const ProgramResult& result : wait_for_all(tasks_)) {
    EXPECT_NE(result.exit_code, 0);
    EXPECT_THAT(result.err,
                HasSubstr(fmt::format("Timeout: connect failed: nothing from worker/2 ({})", addresses_[3])));
  }
}

TEST_F(ByHand, a_chief_that_never_starts_is_named_by_all) {
  for (const int index : {0, 1, 2}) start_as("worker", index, {"--timeout", "3"});
  for (const ProgramResult& result : wait_for_all(tasks_)) {
    EXPECT_NE(result.exit_code, 0);
    EXPECT_THAT(result.err, HasSubstr("Timeout: nothing answered at " + addresses_[0]));
    EXPECT_THAT(result.err, HasSubstr("rank 0"));
  }
}

}  // namespace
}  // namespace tutti::testing::tf_config_test

// Tests training on two hosts with two workers each.
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/launchers/hosts.h"
#include "tests/launchers/sshd.h"
#include "tests/launchers/training.h"
#include "tutti/base/file.h"

namespace tutti::testing::two_hosts_test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr const char* kSecret = "TUTTI_SECRET=of both hosts";

class OnTwoHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = TwoHosts::why_not(); !reason.empty())
      GTEST_SKIP() << "NOTHING IS TESTED HERE: " << reason;
    lay_cable();
  }
  virtual void lay_cable() { hosts_ = std::make_unique<TwoHosts>(); }

  const Host& host_of(int index) const { return index < 2 ? hosts_->east() : hosts_->west(); }

  static std::vector<std::string> flags(int index, const std::vector<std::string>& more) {
    const std::string cluster = fmt::format("worker|{0}:4001;{0}:4002;{1}:4001;{1}:4002",
                                            TwoHosts::kEastAddress, TwoHosts::kWestAddress);
    std::vector<std::string> all = {"--cluster_spec", cluster, "--task_index", std::to_string(index)};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  void start(const std::vector<std::string>& command) {
    tasks_.push_back(std::make_unique<RunningProgram>(command, training_.environment({kSecret})));
  }

  const Training training_;
  std::unique_ptr<TwoHosts> hosts_;
  std::vector<std::unique_ptr<RunningProgram>> tasks_;
};

TEST_F(OnTwoHosts, four_workers_end_with_the_bits_of_one_and_choose_memory_inside_a_host_and_tcp_between) {
  for (const int index : {3, 2, 1, 0}) start(training_.command(host_of(index).here(), flags(index, {})));
  const auto results = wait_for_all(tasks_);
  for (const ProgramResult& result : results) EXPECT_EQ(result.exit_code, 0) << result.err;
  training_.expect_the_bits_of_one(results.back(), 4);
  EXPECT_THAT(results.back().err, HasSubstr("4 workers connected over shm+tcp (on several hosts)"));
}

TEST_F(OnTwoHosts, workers_without_a_secret_are_refused) {
  for (const int index : {3, 2, 1, 0}) {
    const auto command = training_.command(host_of(index).here(), flags(index, {"--timeout", "2"}));
    tasks_.push_back(std::make_unique<RunningProgram>(command, training_.environment()));
  }
  const auto results = wait_for_all(tasks_);
  for (const ProgramResult& result : results) EXPECT_NE(result.exit_code, 0);
  EXPECT_EQ(results.back().exit_code, 2);
  EXPECT_THAT(results.back().err,
              HasSubstr(fmt::format("no task may listen at {} without", TwoHosts::kEastAddress)));
}

TEST_F(OnTwoHosts, shared_memory_between_them_is_refused) {
  for (const int index : {3, 2, 1, 0})
    start(training_.command(host_of(index).here(), flags(index, {"--comm", "shm"})));
  for (const ProgramResult& result : wait_for_all(tasks_)) {
    EXPECT_NE(result.exit_code, 0);
    EXPECT_THAT(result.err, HasSubstr("--comm shm needs all workers on one host"));
  }
}

// TF_CONFIG names the two hosts, and only their launchers know the number of workers on each.
TEST_F(OnTwoHosts, launchers_add_their_own_workers_and_end_with_the_bits_of_one) {
  const nlohmann::json cluster = {
      {"worker",
       {fmt::format("{}:4001", TwoHosts::kEastAddress), fmt::format("{}:4001", TwoHosts::kWestAddress)}}};
  for (const int index : {1, 0}) {
    const nlohmann::json config = {{"cluster", cluster}, {"task", {{"type", "worker"}, {"index", index}}}};
    std::vector<std::string> launcher = (index == 0 ? hosts_->east() : hosts_->west()).here();
    launcher.insert(launcher.end(), {program_path("tutti"), "run", "-n", index == 0 ? "3" : "1", "--"});
    tasks_.push_back(std::make_unique<RunningProgram>(
        training_.command(launcher),
        training_.environment({"TF_CONFIG=" + config.dump(), "CUDA_VISIBLE_DEVICES=", kSecret})));
  }
  const auto results = wait_for_all(tasks_);
  for (const ProgramResult& result : results) EXPECT_EQ(result.exit_code, 0) << result.err;
  training_.expect_the_bits_of_one(results.back(), 4);
  EXPECT_THAT(results.back().err, HasSubstr("4 workers connected over shm+tcp (on several hosts)"));
}

TEST_F(OnTwoHosts, launchers_of_nodes_meet_and_end_with_the_bits_of_one) {
  for (const int node : {1, 0}) {
    const Words launcher = (node == 0 ? hosts_->east() : hosts_->west()).here() +
                           launcher_of_node(node, fmt::format("{}:4000", TwoHosts::kEastAddress)) +
                           Words{"--ports", "4001-4010", "-n", node == 0 ? "3" : "1", "--"};
    tasks_.push_back(std::make_unique<RunningProgram>(
        training_.command(launcher), training_.environment({"CUDA_VISIBLE_DEVICES=", kSecret})));
  }
  const auto results = wait_for_all(tasks_);
  for (const ProgramResult& result : results) EXPECT_EQ(result.exit_code, 0) << result.err;
  training_.expect_the_bits_of_one(results.back(), 4);
  EXPECT_THAT(results.back().err, HasSubstr("4 workers connected over shm+tcp (on several hosts)"));
}

class MpirunOnTwoHosts : public OnTwoHosts {
 protected:
  void SetUp() override {
    OnTwoHosts::SetUp();
    if (!IsSkipped() && !is_installed("mpirun"))
      GTEST_SKIP() << "NOTHING IS TESTED HERE: there is no mpirun (apt-get install openmpi-bin)";
  }

  // mpirun's agent, usually ssh, is `nsenter` here: the first argument is the host, the others are for a
  // shell. It must see the processes of all hosts, and so must the process that started it.
  std::string agent() const {
    const std::string script =
        fmt::format("#!/bin/sh\nshift\nexec {} sh -c \"$*\"\n", fmt::join(hosts_->west().here(), " "));
    std::string path = training_.folder().write("agent", script);
    std::filesystem::permissions(path, std::filesystem::perms(0700));
    return path;
  }
  static std::string both() {
    return fmt::format("{}:2,{}:2", TwoHosts::kEastAddress, TwoHosts::kWestAddress);
  }
};

TEST_F(MpirunOnTwoHosts, ends_with_the_bits_of_one) {
  std::vector<std::string> mpirun = hosts_->east().network_here();
  mpirun.insert(mpirun.end(), {"mpirun", "--allow-run-as-root", "--bind-to", "none", "--mca", "plm_rsh_agent",
                               agent(), "-np", "4", "-H", both()});
  for (const std::string comm : {"auto", "tcp", "mpi", "shm+mpi"}) {
    const auto result = run_program(training_.command(mpirun, {"--comm", comm}), training_.environment());
    training_.expect_the_bits_of_one(result, 4);
    EXPECT_THAT(result.err,
                HasSubstr(fmt::format("over {} (on several hosts)", comm == "auto" ? "shm+tcp" : comm)));
  }
}

// `tutti run` on the east host reaches the west host by ssh.
class SshOnTwoHosts : public OnTwoHosts {
 protected:
  void SetUp() override {
    OnTwoHosts::SetUp();
    if (IsSkipped()) return;
    if (const std::string reason = Sshd::why_not(); !reason.empty())
      GTEST_SKIP() << "NOTHING IS TESTED HERE: " << reason;
    sshd_ = std::make_unique<Sshd>(training_.environment().front(), Words{TwoHosts::kWestAddress},
                                   hosts_->west().here());
  }

  Words launcher() const {
    return hosts_->east().here() +
           Words{program_path("tutti"), "run", "-H",
                 fmt::format("{}:2,{}:2", TwoHosts::kEastAddress, TwoHosts::kWestAddress), "--"};
  }
  std::vector<std::string> environment() const {
    return training_.environment({"TUTTI_RSH=" + sshd_->ssh(), "TUTTI_SEED=5", "CUDA_VISIBLE_DEVICES="});
  }

  std::unique_ptr<Sshd> sshd_;
};

// The seed reaches the other host too: all workers must agree on it.
TEST_F(SshOnTwoHosts, ends_with_the_bits_of_one) {
  const auto result = run_program(training_.command(launcher()), environment());
  training_.expect_the_bits_of_one(result, 4, {"--seed", "5"});
  EXPECT_THAT(result.err, HasSubstr("4 workers connected over shm+tcp (on several hosts)"));
}

TEST_F(SshOnTwoHosts, trains_all_runs_of_a_sweep) {
  const std::string results = training_.folder() / "sweep/sweep.json";
  const Words sweep = hosts_->east().here() + Words{program_path("tutti"),
                                                    "sweep",
                                                    "--logdir",
                                                    training_.folder() / "sweep",
                                                    "--set",
                                                    "learning-rate=1e-3,1e-4",
                                                    "-n",
                                                    "1",
                                                    "--"};
  const Words run = launcher();
  const Words command = sweep + Words(run.end() - 5, run.end()) +
                        Words{program_path("mnist"),
                              "--data",
                              training_.folder().path(),
                              "--lanes",
                              "4",
                              "--batch",
                              "5",
                              "--threads",
                              "1",
                              "--steps",
                              "6"};
  const auto result = run_program(command, environment());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json runs = nlohmann::json::parse(read_file(results)).at("runs");
  ASSERT_EQ(runs.size(), 2U);
  for (const nlohmann::json& run : runs)
    EXPECT_EQ(run.at("stops")[0].at("weights_sha256"),
              training_.hash_of_one(
                  {"--learning-rate", run.at("set").at("learning-rate").get<std::string>(), "--seed", "5"}));
}

TEST_F(SshOnTwoHosts, leaves_nobody_behind_when_the_cable_is_cut) {
  RunningProgram job(training_.endless_command(launcher(), {"--timeout", "3"}), environment());
  ASSERT_TRUE(eventually([&] { return training_.has_come_to(2); }));
  hosts_->west().unplug();
  EXPECT_NE(job.wait(), 0);
  EXPECT_TRUE(eventually([&] { return training_.processes().empty(); }));
  EXPECT_THAT(job.err(), HasSubstr("tutti run on 10.77.0.1: worker/"));
}

// A cable as slow as this carries a message most of the time.
class CutCable : public OnTwoHosts, public ::testing::WithParamInterface<std::string> {
 protected:
  void lay_cable() override { hosts_ = std::make_unique<TwoHosts>("100mbit"); }
};
INSTANTIATE_TEST_SUITE_P(OnTwoHosts, CutCable, ::testing::Values("east", "west"),
                         [](const auto& info) { return info.param; });

TEST_P(CutCable, ends_all_and_each_says_whom_it_misses) {
  for (const int index : {0, 1, 2, 3})
    start(training_.endless_command(host_of(index).here(), flags(index, {"--timeout", "3"})));
  ASSERT_TRUE(eventually([&] { return training_.has_come_to(2); }));
  (GetParam() == "east" ? hosts_->east() : hosts_->west()).unplug();
  EXPECT_TRUE(eventually([&] { return training_.processes().empty(); }));
  const auto results = wait_for_all(tasks_);
  for (const ProgramResult& result : results) EXPECT_NE(result.exit_code, 0);
  for (const int index : {0, 1}) {
    // A worker that waits for a checkpoint to be written waits longer.
    EXPECT_THAT(results[index].err, AnyOf(HasSubstr("for 3 s"), HasSubstr("for 30 s")));
    EXPECT_THAT(results[index].err, AnyOf(HasSubstr("worker/2 on west"), HasSubstr("worker/3 on west")));
  }
  // These two are also disconnected from the board at rank 0, so they may not be able to name what they wait
  // for.
  const std::string board = fmt::format("the board of the ranks at {}:4001", TwoHosts::kEastAddress);
  for (const int index : {2, 3}) {
    EXPECT_THAT(results[index].err,
                AnyOf(HasSubstr(board), HasSubstr("worker/0 on east"), HasSubstr("worker/1 on east")));
  }
}

}  // namespace
}  // namespace tutti::testing::two_hosts_test

// Tests that a training on two hosts goes on without workers, and without a whole host: the weights have the
// bits of a training that nothing has disturbed (`tutti run --min --nnodes`).
#include <map>
#include <signal.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launchers/hosts.h"
#include "tests/together.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"

namespace tutti::testing::two_hosts_members_test {
namespace {

using ::testing::HasSubstr;

// Each host has a launcher with two workers, if a test does not say otherwise. The list of the workers is at
// the east host in the beginning.
class MinOnTwoHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = TwoHosts::why_not(); !reason.empty())
      GTEST_SKIP() << "NOTHING IS TESTED HERE: " << reason;
    hosts_.emplace("1gbit");
  }

  // `disturbs`: flags of the program that change nothing in the weights.
  void start(const Flags& launch, const Flags& program = {}, const Flags& disturbs = {}) {
    launch_ = launch;
    program_ = with(program_, program);
    disturbs_ = disturbs;
    for (const int node : {1, 0}) start_node(node);
  }
  void start_node(int node) {
    const Host& host = node == 0 ? hosts_->east() : hosts_->west();
    const Flags command = host.here() + launcher_of_node(node, rendezvous_) +
                          Flags{"-n", workers_[static_cast<size_t>(node)]} + launch_ +
                          Flags{"--", together_program(), "--threads", "1", "--report", report_} + program_ +
                          disturbs_;
    nodes_[node] = std::make_unique<RunningProgram>(
        command,
        Flags{mark_, "CUDA_VISIBLE_DEVICES=", "TUTTI_SECRET=of both hosts", "TUTTI_TIMEOUT=" + timeout_});
  }
  RunningProgram& east() { return *nodes_.at(0); }
  RunningProgram& west() { return *nodes_.at(1); }
  // Returns the pid of the launcher of this node.
  pid_t launcher_of(int node) const {
    const std::string begin = program_path("tutti") + std::string("\0run\0", 5);
    for (const pid_t pid : processes_with(mark_)) {
      const std::string words = read_system_file(fmt::format("/proc/{}/cmdline", pid));
      const std::string rank = std::string("--node-rank") + '\0' + std::to_string(node) + '\0';
      if (words.starts_with(begin) && words.find(rank) != std::string::npos) return pid;
    }
    ADD_FAILURE() << "there is no launcher of node " << node;
    return 0;
  }
  void await_training() { east().wait_for_error("training with allreduce: 4 workers"); }

  // Waits for the end of the training.
  void expect_the_bits_of_one() { expect_the_bits_of_one(east()); }
  void expect_the_bits_of_one(RunningProgram& launcher) {
    ASSERT_EQ(launcher.wait(), 0) << launcher.err();
    EXPECT_EQ(json_of(report_).value("weights_sha256", "there is none"),
              hash_of(on_workers(1, program_), alone_));
  }
  void expect_that_nobody_is_left() {
    EXPECT_TRUE(eventually([this] { return processes_with(mark_).empty(); }));
  }

  const TestFolder folder_;
  const TestFolder alone_;
  const std::string report_ = folder_ / "report.json";
  const std::string mark_ = "MARK_OF_THIS_TEST=" + folder_.path();
  Flags program_ = {"--net", "normed", "--lanes", "8", "--batch", "2", "--steps", "300"};
  std::vector<std::string> workers_ = {"2", "2"};  // by node
  std::string rendezvous_ = fmt::format("{}:4000", TwoHosts::kEastAddress);
  std::string timeout_ = "60";
  Flags launch_;
  Flags disturbs_;
  std::optional<TwoHosts> hosts_;
  std::map<int, std::unique_ptr<RunningProgram>> nodes_;
};

TEST_F(MinOnTwoHosts, goes_on_without_workers_of_both) {
  start({"--min", "1"}, {}, {"--misfortune", "3@5/before,0@8/told"});
  expect_the_bits_of_one();
  EXPECT_EQ(west().wait(), 0) << west().err();
  EXPECT_THAT(east().err(), HasSubstr("4 workers connected over shm+tcp (on several hosts)"));
  EXPECT_THAT(east().err(), HasSubstr("going on at step 5 with 3 workers: worker/3 is gone"));
  EXPECT_THAT(west().err() + east().err(), HasSubstr("with 2 workers: worker/0 is gone"));
  expect_that_nobody_is_left();
}

TEST_F(MinOnTwoHosts, takes_in_a_worker_that_is_started_again) {
  start({"--min", "1", "--restarts", "1"}, {}, {"--misfortune", "2@5/before"});
  expect_the_bits_of_one();
  EXPECT_EQ(west().wait(), 0) << west().err();
  EXPECT_THAT(east().err(), HasSubstr("worker/2 has come back: 4 go on"));
  expect_that_nobody_is_left();
}

TEST_F(MinOnTwoHosts, goes_on_without_a_host_that_is_gone_and_takes_it_in_again) {
  start({"--min", "2"}, {"--steps", "1500"});
  await_training();
  if (const pid_t pid = launcher_of(1); pid > 0) kill(pid, SIGKILL);
  east().wait_for_error("with 2 workers: ");
  west().wait();
  start_node(1);
  east().wait_for_error("with 4 workers: ");
  expect_the_bits_of_one();
  EXPECT_EQ(west().wait(), 0) << west().err();
  expect_that_nobody_is_left();
}

TEST_F(MinOnTwoHosts, goes_on_without_a_host_that_vanishes) {
  timeout_ = "3";
  start({"--min", "1"});
  await_training();
  kill(hosts_->west().pid(), SIGKILL);
  expect_the_bits_of_one();
  EXPECT_NE(west().wait(), 0);
  expect_that_nobody_is_left();
}

// The west host has more than half of the workers.
TEST_F(MinOnTwoHosts, goes_on_without_the_launcher_that_has_the_list) {
  workers_ = {"1", "3"};
  start({"--min", "1"}, {"--steps", "1500"});
  await_training();
  if (const pid_t pid = launcher_of(0); pid > 0) kill(pid, SIGKILL);
  expect_the_bits_of_one(west());
  EXPECT_THAT(west().err(), HasSubstr("with 3 workers: worker/0 is gone"));
  EXPECT_NE(east().wait(), 0);
  expect_that_nobody_is_left();
}

TEST_F(MinOnTwoHosts, takes_the_host_in_again_that_has_had_the_list) {
  workers_ = {"1", "3"};
  rendezvous_ += fmt::format(",{}:4000", TwoHosts::kWestAddress);
  start({"--min", "1"}, {"--steps", "1000"}, {"--await-world", "4"});
  await_training();
  if (const pid_t pid = launcher_of(0); pid > 0) kill(pid, SIGKILL);
  west().wait_for_error("with 3 workers: ");
  east().wait();
  start_node(0);
  expect_the_bits_of_one(west());
  EXPECT_THAT(west().err(), HasSubstr("worker/0 has come back: 4 go on"));
  EXPECT_EQ(east().wait(), 0) << east().err();
  expect_that_nobody_is_left();
}

TEST_F(MinOnTwoHosts, goes_on_without_the_host_that_has_the_list_when_it_vanishes) {
  timeout_ = "3";
  workers_ = {"1", "3"};
  start({"--min", "1"}, {"--steps", "1500"});
  await_training();
  kill(hosts_->east().pid(), SIGKILL);
  expect_the_bits_of_one(west());
  EXPECT_NE(east().wait(), 0);
  expect_that_nobody_is_left();
}

// Nothing is closed: both sides only notice that nothing comes.
TEST_F(MinOnTwoHosts, one_side_of_a_cut_cable_goes_on_and_the_other_ends) {
  timeout_ = "3";
  start({"--min", "2"});
  await_training();
  hosts_->west().unplug();
  expect_the_bits_of_one();
  EXPECT_EQ(west().wait(), exit_code(ErrorKind::PeerLost)) << west().err();
  EXPECT_THAT(west().err(), HasSubstr("ending the tasks of this host"));
  expect_that_nobody_is_left();
}

}  // namespace
}  // namespace tutti::testing::two_hosts_members_test

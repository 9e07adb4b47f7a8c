// Tests how the workers of several launchers go on without those that are lost (`tutti run --min` with
// --nnodes and -H). All launchers are on this machine; the workers are those of members_program.cc.
#include <filesystem>
#include <map>
#include <signal.h>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "tests/run_on_nodes.h"
#include "tutti/base/error.h"
#include "tutti/transport/board/tcp_rendezvous.h"

namespace tutti::testing::run_hosts_members_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(RunMinOnNodes, ends_well_if_nobody_is_lost) {
  start({"--min", "1"});
  finish();
  expect_ends(0, 0);
}

TEST_F(RunMinOnNodes, goes_on_without_workers_of_any_host) {
  start({"--min", "1"});
  kill_worker(2);
  wait_for(3, 0, 2, 3);
  kill_worker(0);
  wait_for(1, 0, 0, 2);
  wait_for(3, 0, 1, 2);
  finish();
  expect_ends(0, 0);
  EXPECT_THAT(err(0), ::testing::ContainsRegex("worker/2 \\(pid [0-9]+\\) was killed by SIGKILL \\(Killed\\) "
                                               "after [0-9.]+ s on node 1; the other 3 go on"));
}

TEST_F(RunMinOnNodes, goes_on_without_all_workers_of_a_host) {
  start({"--min", "1"});
  kill_worker(0);
  wait_for(1, 0, 0, 3);
  kill_worker(1);
  wait_for(2, 0, 0, 2);
  wait_for(3, 0, 1, 2);
  finish();
  expect_ends(0, 0);
}

// The restarted worker gets a rank beside the other worker of its host.
TEST_F(RunMinOnNodes, starts_a_lost_worker_again_on_its_host) {
  start({"--min", "1", "--restarts", "2"});
  kill_worker(2);
  wait_for(2, 1, 3, 4);
  kill_worker(0);
  wait_for(0, 1, 1, 4);
  wait_for(1, 0, 0, 4);
  finish();
  expect_ends(0, 0);
  EXPECT_THAT(err(0), HasSubstr("restarting it: restart 1 of 2"));
  EXPECT_THAT(err(0), HasSubstr("worker/2 has come back: 4 go on"));
}

TEST_F(RunMinOnNodes, goes_on_without_a_host_and_takes_it_in_again) {
  start({"--min", "2"});
  kill(nodes_[1]->pid(), SIGKILL);
  wait_for(0, 0, 0, 2);
  wait_for(1, 0, 1, 2);
  expect_end(1, 128 + SIGKILL);
  start_node(1);
  nodes_[0]->wait_for_error("has come back: 4 go on");
  finish();
  expect_ends(0, 0);
  EXPECT_THAT(err(0), HasSubstr("the launcher of node 1 is gone"));
  EXPECT_THAT(err(0), HasSubstr("worker/3 was on node 1, whose launcher is gone; the other 2 go on"));
}

// The others wait for it, as for one that was never started.
TEST_F(RunMinOnNodes, a_launcher_without_the_program_ends_before_it_meets_the_others) {
  flags_ = {"--min", "1"};
  start_node(0);
  Words command = launcher(1, flags_);
  command[command.size() - 2] = "/nowhere/members_program";
  const ProgramResult result = run_program(command, {mark_, "TUTTI_SECRET=ours"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("/nowhere/members_program: there is no such program"));
  start_node(1);
  wait_for(3, 0, 3, 4);
  finish();
  expect_ends(0, 0);
}

TEST_F(RunMinOnNodes, ends_if_too_few_are_left_without_a_host) {
  start({"--min", "3"});
  kill(nodes_[1]->pid(), SIGKILL);
  expect_ends(128 + SIGKILL, 128 + SIGKILL);
  EXPECT_THAT(err(0), HasSubstr("the job ends: 2 of 4 workers are left, fewer than --min 3"));
}

// A launcher that was at the meeting, and never comes to the list.
TEST_F(RunMinOnNodes, goes_on_without_a_host_that_is_lost_before_it_has_come_to_the_list) {
  timeout_ = "4";
  flags_ = {"--min", "2"};
  start_node(0);
  nodes_[0]->wait_for_error("waits up to");
  auto second = comm::find_tcp_rendezvous({.hosts = {"127.0.0.1"},
                                           .port = static_cast<uint16_t>(port_),
                                           .credentials = {.secret = "ours"},
                                           .purpose = "launchers"})
                    .board;
  const nlohmann::json offer = {{"address", "127.0.0.1"},
                                {"ports", {1, 2}},
                                {"workers", kWorkers},
                                {"members_port", 0},
                                {"launcher", "b"}};
  second->hold("offer/1", nlohmann::json{{"offer", offer}, {"from", "b"}}.dump());
  second->get("answer", std::chrono::minutes(1));
  second.reset();
  wait_for(1, 0, 1, 2);
  start_node(1);
  nodes_[0]->wait_for_error("has come back: 4 go on");
  finish();
  expect_ends(0, 0);
}

// Its launcher is silent, and its workers may live: the others do not wait for them.
TEST_F(RunMinOnNodes, goes_on_without_a_host_whose_launcher_is_silent) {
  timeout_ = "4";
  start({"--min", "1"});
  kill(nodes_[1]->pid(), SIGSTOP);
  wait_for(0, 0, 0, 2);
  kill(nodes_[1]->pid(), SIGCONT);
  expect_end(1, exit_code(ErrorKind::PeerLost));
  finish();
  expect_end(0, 0);
  EXPECT_TRUE(nobody_is_left());
}

TEST_F(RunMinOnNodes, a_signal_to_one_launcher_takes_its_workers_out) {
  start({"--min", "1"});
  kill(nodes_[1]->pid(), SIGTERM);
  expect_end(1, 128 + SIGTERM);
  wait_for(0, 0, 0, 2);
  finish();
  expect_end(0, 0);
  EXPECT_TRUE(nobody_is_left());
}

TEST_F(RunMinOnNodes, ends_if_a_signal_to_one_launcher_leaves_too_few) {
  start({"--min", "3"});
  kill(nodes_[1]->pid(), SIGTERM);
  expect_ends(128 + SIGTERM, 128 + SIGTERM);
}

TEST_F(RunMinOnNodes, counts_restarts_on_all_nodes_together) {
  start({"--min", "4", "--restarts", "1"});
  kill_worker(0);
  wait_for(0, 1, 1, 4);
  kill_worker(3);
  expect_ends(128 + SIGKILL, 128 + SIGKILL);
  for (const int node : {0, 1}) EXPECT_THAT(err(node), Not(HasSubstr("tutti run: restart"))) << node;
}

// For longer than a call of a board waits elsewhere.
TEST_F(RunMinOnNodes, survives_a_pause_of_the_launcher_that_has_the_list) {
  start({"--min", "1"});
  kill(nodes_[0]->pid(), SIGSTOP);
  std::this_thread::sleep_for(std::chrono::seconds(6));
  kill(nodes_[0]->pid(), SIGCONT);
  kill_worker(3);
  wait_for(2, 0, 2, 3);
  finish();
  expect_ends(0, 0);
}

TEST_F(RunMinOnNodes, a_signal_to_the_first_launcher_ends_the_job) {
  start({"--min", "1", "--restarts", "3"});
  kill(nodes_[0]->pid(), SIGTERM);
  expect_ends(128 + SIGTERM, 128 + SIGTERM);
}

// Half of the workers is not enough without the launcher that has the list: it may go on with the others.
TEST_F(RunMinOnNodes, ends_with_half_of_the_workers_without_the_launcher_that_has_the_list) {
  start({"--min", "1"});
  kill(nodes_[0]->pid(), SIGKILL);
  expect_ends(128 + SIGKILL, exit_code(ErrorKind::PeerLost));
  EXPECT_THAT(err(1), HasSubstr("the launcher of node 0, which has the list of the workers, is lost"));
  EXPECT_THAT(err(1), HasSubstr("only the launchers of 2 of the 4 workers of epoch 0 can be reached"));
}

TEST_F(RunMinOnNodes, goes_on_with_more_than_half_without_the_launcher_that_has_the_list) {
  start({"--min", "1"});
  kill_worker(0);
  wait_for(1, 0, 0, 3);
  wait_for_vote(1, 1, 1);
  kill(nodes_[0]->pid(), SIGKILL);
  wait_for(2, 0, 0, 2);
  wait_for(3, 0, 1, 2);
  finish();
  expect_ends(128 + SIGKILL, 0);
  EXPECT_THAT(err(1), HasSubstr("this one keeps it from here on"));
}

TEST_F(RunMinOnNodes, ends_with_less_than_half_although_it_has_the_list) {
  start({"--min", "1"});
  kill_worker(0);
  wait_for(1, 0, 0, 3);
  kill(nodes_[1]->pid(), SIGKILL);
  expect_ends(exit_code(ErrorKind::PeerLost), 128 + SIGKILL);
  EXPECT_THAT(err(0), HasSubstr("only the launchers of 1 of the 3 workers of epoch 1 can be reached"));
}

// Its launcher votes before it leaves.
TEST_F(RunMinOnNodes, goes_on_with_less_than_half_if_the_others_leave_in_good_order) {
  start({"--min", "1"});
  kill_worker(0);
  wait_for(1, 0, 0, 3);
  kill(nodes_[1]->pid(), SIGTERM);
  wait_for(1, 0, 0, 1);
  finish();
  expect_ends(0, 128 + SIGTERM);
}

TEST_F(RunMinOnNodes, begins_again_when_the_launcher_that_has_the_list_is_there_again) {
  start({"--min", "1", "--restarts", "1"});
  kill(nodes_[0]->pid(), SIGKILL);
  nodes_[1]->wait_for_error("tutti run: restart 1 of 1");
  expect_end(0, 128 + SIGKILL);
  start_node(0);
  for (const int worker : {0, 1}) wait_for(worker, 0, worker, 2 * kWorkers);
  finish();
  expect_ends(0, 0);
}

TEST_F(RunMinOnNodes, a_worker_that_fails_by_itself_ends_and_restarts_the_job) {
  for (const int worker : {0, 3}) {
    start({"--min", "1", "--restarts", "1"});
    const std::string fails = folder_.write(fmt::format("fail-{}", worker), "");
    expect_ends(3, 3);
    std::filesystem::remove(fails);
    for (const int node : {0, 1}) EXPECT_THAT(err(node), HasSubstr("tutti run: restart 1 of 1")) << worker;
    EXPECT_THAT(err(worker / kWorkers), HasSubstr("ended with exit code 3"));
  }
}

TEST_F(RunMinOnNodes, refuses_flags_that_differ_or_do_not_fit) {
  flags_ = {"--min", "5"};
  for (const int node : {1, 0}) start_node(node);
  expect_ends(2, 2);
  EXPECT_THAT(err(0), HasSubstr("--min 5 is not between 1 and the number of workers, 4"));
  flags_ = {"--min", "1"};
  start_node(0);
  flags_ = {"--min", "2"};
  start_node(1);
  expect_end(1, 2);
  EXPECT_THAT(err(1), HasSubstr("--min"));
  kill(nodes_[0]->pid(), SIGTERM);
  expect_end(0, 128 + SIGTERM);
}

TEST_F(RunMinOnThreeNodes, go_on_without_the_launcher_that_has_the_list) {
  start({"--min", "1"});
  kill(nodes_[0]->pid(), SIGKILL);
  for (const int worker : {2, 3, 4, 5}) wait_for(worker, 0, worker - 2, 4);
  finish();
  expect_end_on({{0, 128 + SIGKILL}, {1, 0}, {2, 0}});
  EXPECT_THAT(err(1), HasSubstr("this one keeps it from here on"));
  EXPECT_THAT(err(1), HasSubstr("worker/0 was on node 0, whose launcher is gone; the other 4 go on"));
}

TEST_F(RunMinOnThreeNodes, start_workers_again_without_the_first_launcher) {
  start({"--min", "1", "--restarts", "2"});
  kill_worker(4);
  wait_for(4, 1, 5, 6);
  kill(nodes_[0]->pid(), SIGKILL);
  for (const int worker : {2, 3, 5}) wait_for(worker, 0, worker == 5 ? 2 : worker - 2, 4);
  kill_worker(4, 1);
  wait_for(4, 2, 3, 4);
  finish();
  expect_end_on({{1, 0}, {2, 0}});
  EXPECT_THAT(err(1), HasSubstr("restarting it: restart 2 of 2"));
}

// Node 1 keeps the list with four of six workers, and node 2 goes on with two of three.
TEST_F(RunMinOnThreeNodes, lose_one_launcher_after_the_other) {
  start({"--min", "1"});
  kill(nodes_[0]->pid(), SIGKILL);
  wait_for(5, 0, 3, 4);
  kill_worker(2);
  wait_for(5, 0, 2, 3);
  wait_for_vote(2, 2, 3);
  kill(nodes_[1]->pid(), SIGKILL);
  wait_for(4, 0, 0, 2);
  wait_for(5, 0, 1, 2);
  finish();
  expect_end_on({{2, 0}});
}

TEST_F(RunMinOnThreeNodes, lose_the_first_two_launchers_at_once_and_end) {
  start({"--min", "1"});
  kill(nodes_[0]->pid(), SIGKILL);
  kill(nodes_[1]->pid(), SIGKILL);
  expect_end_on({{0, 128 + SIGKILL}, {1, 128 + SIGKILL}, {2, exit_code(ErrorKind::PeerLost)}});
  EXPECT_THAT(err(2), HasSubstr("only the launchers of 2 of the 6 workers of epoch 0 can be reached"));
}

TEST_F(RunMinOnThreeNodes, go_on_without_the_first_launcher_before_the_training_has_begun) {
  folder_.write("untrained", "");
  start({"--min", "1"});
  kill(nodes_[0]->pid(), SIGKILL);
  for (const int worker : {2, 3, 4, 5}) wait_for(worker, 0, worker - 2, 4);
  std::filesystem::remove(folder_ / "untrained");
  finish();
  expect_end_on({{1, 0}, {2, 0}});
}

TEST_F(RunMinOnThreeNodes, go_on_without_the_first_launcher_that_is_lost_while_workers_connect) {
  flags_ = {"--min", "1"};
  for (const int node : {2, 1, 0}) start_node(node);
  nodes_[0]->wait_for_output("worker 0, life 0,");
  kill(nodes_[0]->pid(), SIGKILL);
  for (const int worker : {2, 3, 4, 5}) wait_for(worker, 0, worker - 2, 4);
  finish();
  expect_end_on({{1, 0}, {2, 0}});
}

// It sees that it was replaced when it goes on, and ends its tasks.
TEST_F(RunMinOnThreeNodes, go_on_without_the_first_launcher_if_it_is_silent) {
  timeout_ = "4";
  start({"--min", "1"});
  kill(nodes_[0]->pid(), SIGSTOP);
  for (const int worker : {2, 3, 4, 5}) wait_for(worker, 0, worker - 2, 4);
  kill(nodes_[0]->pid(), SIGCONT);
  expect_end(0, exit_code(ErrorKind::PeerLost));
  EXPECT_THAT(err(0), HasSubstr("this launcher was stopped for longer than the others wait"));
  EXPECT_THAT(err(0), HasSubstr("ending the tasks of this host: only the launchers of 2 of the 6 workers"));
  EXPECT_THAT(err(0), Not(HasSubstr("is gone")));
  kill_worker(5);
  wait_for(4, 0, 2, 3);
  finish();
  expect_end_on({{1, 0}, {2, 0}});
}

TEST_F(RunMinOnThreeNodes, a_signal_to_the_launcher_that_has_taken_the_list_over_ends_the_job) {
  start({"--min", "1"});
  kill(nodes_[0]->pid(), SIGKILL);
  for (const int worker : {2, 3, 4, 5}) wait_for(worker, 0, worker - 2, 4);
  kill(nodes_[1]->pid(), SIGTERM);
  expect_end_on({{1, 128 + SIGTERM}, {2, 128 + SIGTERM}});
}

class RunMinFromTfConfig : public RunMinWithAddresses {
 protected:
  Words begin_of(int /*node*/) const override { return {program_path("tutti"), "run"}; }
  Words variables_of(int node) const override {
    const nlohmann::json config = {{"cluster", {{"worker", addresses_}}},
                                   {"task", {{"type", "worker"}, {"index", node}}}};
    return {"TF_CONFIG=" + config.dump()};
  }
};

TEST_F(RunMinFromTfConfig, goes_on_without_a_host_and_takes_it_in_again) {
  start({"--min", "1"});
  kill_node(2);
  for (const int worker : {0, 1, 2, 3}) wait_for(worker, 0, worker, 4);
  start_node(2);
  nodes_[0]->wait_for_error("has come back: 6 go on");
  finish_on_all();
}

TEST_F(RunMinFromTfConfig, goes_on_without_the_first_host_and_takes_it_in_again) {
  start({"--min", "1"});
  kill_node(0);
  for (const int worker : {2, 3, 4, 5}) wait_for(worker, 0, worker - 2, 4);
  start_node(0);
  nodes_[1]->wait_for_error("has come back: 6 go on");
  finish_on_all();
}

// The workers that have left with their machine come again with its launcher, though another one has the list
// now.
TEST_F(RunMinInPods, take_the_first_in_again_after_its_workers_have_left) {
  start({"--min", "1", "--preempt-signal", "USR1"});
  kill(nodes_[0]->pid(), SIGUSR1);
  for (const int worker : {2, 3, 4, 5}) wait_for(worker, 0, worker - 2, 4);
  kill_node(0);
  start_node(0);
  node_of(0).wait_for_output(begun_by_member(0, 1));
  node_of(1).wait_for_output(begun_by_member(1, 1));
  finish_on_all();
}

// The launcher of node 0 comes again as one that may take the list over, at another address than before.
TEST_F(RunMinInPods, take_each_in_again_that_has_had_the_list) {
  start({"--min", "1"});
  kill_node(0);
  for (const int worker : {2, 3, 4, 5}) wait_for(worker, 0, worker - 2, 4);
  start_node(0);
  nodes_[1]->wait_for_error("has come back: 6 go on");
  wait_for(4, 0, 2, 6);
  for (const int node : {0, 2}) wait_for_vote(node, epoch_of(4), 2);
  kill_node(1);
  for (const int worker : {4, 5}) wait_for(worker, 0, worker - 4, 4);
  nodes_[0]->wait_for_output(" of 4, epoch");
  start_node(1);
  nodes_[2]->wait_for_error("has come back: 6 go on");
  finish_on_all();
}

TEST_F(RunMinInPods, take_a_launcher_in_again_that_was_replaced_while_it_was_stopped) {
  timeout_ = "4";
  start({"--min", "1", "--restarts", "1"});
  kill(nodes_[0]->pid(), SIGSTOP);
  for (const int worker : {2, 3, 4, 5}) wait_for(worker, 0, worker - 2, 4);
  kill(nodes_[0]->pid(), SIGCONT);
  nodes_[1]->wait_for_error("has come back: 6 go on");
  finish_on_all();
}

TEST_F(RunMinInPods, are_scaled_after_the_first_launcher_was_lost) {
  start({"--min", "1"});
  kill_node(0);
  for (const int worker : {2, 3, 4, 5}) wait_for(worker, 0, worker - 2, 4);
  const ProgramResult scaled =
      run_program({program_path("tutti"), "scale", fmt::format("{}", fmt::join(addresses_, ",")), "3"},
                  {"TUTTI_SECRET=ours"});
  EXPECT_EQ(scaled.exit_code, 0) << scaled.out << scaled.err;
  wait_for(4, 0, 2, 3);
  finish();
  expect_end_on({{1, 0}, {2, 0}});
}

class RunMinWithLogDirectory : public RunMinOnThreeNodes {
 protected:
  Words variables_of(int /*node*/) const override { return {"TUTTI_LOGDIR=" + folder_.path()}; }
};

TEST_F(RunMinWithLogDirectory, takes_the_first_host_in_again) {
  start({"--min", "1"});
  kill(nodes_[0]->pid(), SIGKILL);
  expect_end(0, 128 + SIGKILL);
  for (const int worker : {2, 3, 4, 5}) wait_for(worker, 0, worker - 2, 4);
  start_node(0);
  nodes_[1]->wait_for_error("has come back: 6 go on");
  finish();
  expect_end_on({{0, 0}, {1, 0}, {2, 0}});
}

// A launcher that starts the launchers of other hosts, and has no workers of its own.
class RunMinOnHosts : public Run {
 protected:
  void start(const Words& flags) {
    const std::string agent = folder_.write(
        "agent", fmt::format("#!/bin/sh\n[ -e '{}/down' ] && echo $1 is down >&2 && exit 255\nshift\n"
                             "exec sh -c \"$*\"\n",
                             folder_.path()));
    std::filesystem::permissions(agent, std::filesystem::perms(0700));
    program_.emplace(Words{program_path("tutti"), "run", "--rsh", agent, "-H", "a:2,b:2"} + flags +
                         Words{"--", program_path("../test/members_program"), folder_.path()},
                     Words{mark_});
    for (int worker = 0; worker < 4; ++worker) wait_for(worker, 0, worker, 4);
  }
  void wait_for(int worker, int life, int rank, int workers) {
    program_->wait_for_output(said_by_member(worker, life, rank, workers));
  }
  pid_t pid_of(int worker) const { return pid_of_member(program_->out(), worker, 0); }
  // Returns the pid of the launcher on the worker's host.
  pid_t launcher_of(int worker) const {
    const std::string line = read_system_file(fmt::format("/proc/{}/stat", pid_of(worker)));
    return std::stoi(line.substr(line.rfind(") ") + 4));
  }
  void finish(int exit_code = 0) {
    folder_.write("finish", "");
    end_with(exit_code);
  }
  void end_with(int exit_code) {
    EXPECT_EQ(program_->wait(), exit_code) << program_->out() << program_->err();
    EXPECT_TRUE(nobody_is_left());
  }

  std::optional<RunningProgram> program_;
};

TEST_F(RunMinOnHosts, goes_on_without_a_worker_and_takes_it_in_again) {
  start({"--min", "1", "--restarts", "1"});
  kill(pid_of(1), SIGKILL);
  wait_for(1, 1, 1, 4);
  finish();
  EXPECT_THAT(program_->err(), HasSubstr("restarting it: restart 1 of 1"));
}

TEST_F(RunMinOnHosts, goes_on_without_a_host_whose_launcher_is_killed_and_takes_it_in_again) {
  start({"--min", "1"});
  kill(launcher_of(3), SIGKILL);
  wait_for(0, 0, 0, 2);
  wait_for(1, 0, 1, 2);
  for (const int worker : {2, 3}) program_->wait_for_output(begun_by_member(worker, 1));
  finish();
  EXPECT_THAT(program_->err(), HasSubstr("the launcher of b is gone"));
  EXPECT_THAT(program_->err(), HasSubstr("host b answers: starting its workers"));
}

// As somebody tries it on one machine.
TEST_F(RunMinOnHosts, may_be_names_of_this_machine) {
  program_.emplace(Words{program_path("tutti"), "run", "-H", "localhost:2,127.0.0.1:2", "--min", "1", "--",
                         program_path("../test/members_program"), folder_.path()},
                   Words{mark_});
  for (int worker = 0; worker < 4; ++worker) wait_for(worker, 0, worker, 4);
  kill(pid_of(3), SIGKILL);
  wait_for(2, 0, 2, 3);
  finish();
}

TEST_F(RunMinOnHosts, tries_to_reach_a_lost_host_until_it_answers) {
  start({"--min", "1"});
  const std::string down = folder_.write("down", "");
  kill(launcher_of(0), SIGKILL);
  program_->wait_for_error("host a does not come again yet (a is down); trying again");
  wait_for(2, 0, 0, 2);
  std::filesystem::remove(down);
  for (const int worker : {0, 1}) program_->wait_for_output(begun_by_member(worker, 1));
  finish();
}

TEST_F(RunMinOnHosts, ends_without_a_host_that_does_not_come_again) {
  start({"--min", "1"});
  folder_.write("down", "");
  kill(launcher_of(3), SIGKILL);
  program_->wait_for_error("host b does not come again yet");
  finish();
}

TEST_F(RunMinOnHosts, a_host_whose_launcher_was_told_to_end_stays_away) {
  start({"--min", "1"});
  kill(launcher_of(3), SIGTERM);
  wait_for(0, 0, 0, 2);
  finish();
  EXPECT_THAT(program_->err(), Not(HasSubstr("host b answers")));
  EXPECT_THAT(program_->err(), Not(HasSubstr("its last lines"))) << "its workers have not failed";
}

TEST_F(RunMinOnHosts, ends_with_the_error_of_a_host_that_has_no_such_program) {
  folder_.write("agent", fmt::format("#!/bin/sh\n[ $1 = a ] && PATH=\"{}:$PATH\"\nshift\nexec sh -c \"$*\"\n",
                                     folder_.path()));
  const std::string program = folder_.write("only-on-a", "#!/bin/sh\nsleep 100\n");
  for (const char* file : {"agent", "only-on-a"})
    std::filesystem::permissions(folder_ / file, std::filesystem::perms(0700));
  const ProgramResult result = run_program({program_path("tutti"), "run", "--rsh", folder_ / "agent", "-H",
                                            "a:1,b:1", "--min", "1", "--", "only-on-a"},
                                           {mark_});
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_THAT(result.err, HasSubstr("tutti run on b: only-on-a: there is no such program"));
  EXPECT_TRUE(nobody_is_left());
}

TEST_F(RunMinOnHosts, a_worker_that_fails_by_itself_ends_the_job) {
  start({"--min", "1"});
  folder_.write("fail-2", "");
  end_with(3);
  EXPECT_THAT(program_->err(), HasSubstr("ended with exit code 3"));
}

TEST_F(RunMinOnHosts, a_signal_ends_the_job) {
  start({"--min", "1", "--restarts", "1"});
  kill(program_->pid(), SIGTERM);
  end_with(128 + SIGTERM);
}

// A launcher that asks a command for the hosts.
class RunDiscovers : public RunMinOnHosts {
 protected:
  void list(const std::string& hosts) {
    folder_.write("hosts.new", hosts);
    std::filesystem::rename(folder_ / "hosts.new", folder_ / "hosts");
  }
  void start_discovered(const Words& flags) { start_without_agent(Words{"--rsh", agent()} + flags); }
  void start_without_agent(const Words& flags) {
    program_.emplace(Words{program_path("tutti"), "run", "--discover", "cat " + folder_ / "hosts",
                           "--discover-every", "0.05"} +
                         flags + Words{"--", program_path("../test/members_program"), folder_.path()},
                     Words{mark_});
  }
};

TEST_F(RunDiscovers, hosts_that_come_and_go) {
  list("a:2\n");
  start_discovered({"--min", "1", "--max", "4"});
  wait_for(1, 0, 1, 2);
  list("b:2\na:2\n");
  for (const int worker : {2, 3}) program_->wait_for_output(begun_by_member(worker, 1));
  list("b:2\n");
  program_->wait_for_error("; the other 2 go on");
  list("b:2\nc:1\n");
  program_->wait_for_output(begun_by_member(0, 1));
  finish();
  EXPECT_THAT(program_->err(), HasSubstr("host b is listed: starting 2 workers there"));
  EXPECT_THAT(program_->err(), HasSubstr("host a is listed no more: its workers leave after a step"));
}

// As somebody tries it on one machine.
TEST_F(RunDiscovers, names_of_this_machine) {
  list("localhost:1\n");
  start_without_agent({"--min", "1", "--max", "2"});
  wait_for(0, 0, 0, 1);
  list("localhost:1\n127.0.0.1:1\n");
  wait_for(1, 1, 1, 2);
  list("127.0.0.1:1\n");
  wait_for(1, 1, 0, 1);
  finish();
}

TEST_F(RunDiscovers, nothing_from_a_command_that_fails) {
  folder_.write("hosts", "");
  start_discovered({"--min", "2", "--max", "2"});
  program_->wait_for_error("changes nothing: it printed no host");
  list("a:2\n");
  wait_for(1, 0, 1, 2);
  list("a:two\n");
  program_->wait_for_error("changes nothing: tutti run: -H 'a:two'");
  finish();
}

TEST_F(RunDiscovers, that_the_last_workers_are_needed_until_others_train) {
  folder_.write("hold", "");
  list("a:1\n");
  start_discovered({"--min", "1", "--max", "2"});
  wait_for(0, 0, 0, 1);
  list("b:1\n");
  program_->wait_for_error(
      "host a is listed no more, but its workers stay until enough workers of other hosts");
  program_->wait_for_output("[worker/1] is back");
  std::filesystem::remove(folder_ / "hold");
  program_->wait_for_error("host a is listed no more: its workers leave after a step");
  wait_for(1, 1, 0, 1);
  finish();
}

TEST_F(RunDiscovers, hosts_that_have_no_place) {
  list("a:1\n");
  start_discovered({"--min", "1", "--max", "2"});
  wait_for(0, 0, 0, 1);
  const ProgramResult scaled = run_program({program_path("tutti"), "scale", folder_.path(), "2"});
  EXPECT_EQ(scaled.exit_code, exit_code(ErrorKind::PeerLost)) << scaled.err;
  EXPECT_THAT(scaled.out,
              HasSubstr("from 1 to 2 workers: worker/1 cannot be started (no listed host is free)\n"));
  list("a:1\nb:1\nc:1\n");
  program_->wait_for_error(
      "host c is listed, but not used: the places of all workers (--max) have other hosts");
  program_->wait_for_output(begun_by_member(1, 1));
  finish();
}

// The second host has fewer slots than its place.
TEST_F(RunDiscovers, how_many_workers_a_host_may_have) {
  list("a:2\n");
  start_discovered({"--min", "1", "--max", "4"});
  wait_for(1, 0, 1, 2);
  list("a:2\nb:1\n");
  program_->wait_for_output(begun_by_member(2, 1));
  const ProgramResult scaled = run_program({program_path("tutti"), "scale", folder_.path(), "4"});
  EXPECT_EQ(scaled.exit_code, exit_code(ErrorKind::PeerLost)) << scaled.err;
  EXPECT_THAT(scaled.out, HasSubstr("worker/3 cannot be started (b has 1 slot)"));
  finish();
}

TEST_F(RunDiscovers, needs_limits) {
  const ProgramResult result = run({"--discover", "echo a", "--min", "1"}, "echo never");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("--discover needs --min M and --max X"));
}

}  // namespace
}  // namespace tutti::testing::run_hosts_members_test

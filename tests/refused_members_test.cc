// Tests what becomes of a worker or a launcher that comes to a job which trains (`tutti run --min`), and does
// not belong there or cannot be taken in: it ends alone and says why, and the others go on. The workers are
// those of members_program.cc.
#include <filesystem>
#include <optional>
#include <signal.h>
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "tests/run_on_nodes.h"
#include "tutti/base/error.h"
#include "tutti/transport/board/tcp_rendezvous.h"

namespace tutti::testing::refused_members_test {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// Workers of one launcher.
class Refused : public Run {
 protected:
  void start(const Words& flags) {
    program_.emplace(Words{program_path("tutti"), "run", "-n", "3"} + flags +
                         Words{"--", program_path("../test/members_program"), folder_.path()},
                     Words{mark_});
    for (int worker = 0; worker < 3; ++worker) wait_for(worker, 0, worker, 3);
  }
  void wait_for(int worker, int life, int rank, int workers) {
    program_->wait_for_output(said_by_member(worker, life, rank, workers));
  }
  void kill_worker(int worker) { kill(pid_of_member(program_->out(), worker, 0), SIGKILL); }
  void finish(int exit_code = 0) {
    folder_.write("finish", "");
    EXPECT_EQ(program_->wait(), exit_code) << program_->out() << program_->err();
    EXPECT_TRUE(nobody_is_left());
  }

  std::optional<RunningProgram> program_;
};

// The configuration was changed meanwhile. It is not started another time, since it would be refused again.
TEST_F(Refused, a_worker_that_is_started_again_with_other_flags_ends_alone) {
  folder_.write("config", "--batch 2");
  start({"--min", "1", "--restarts", "3"});
  folder_.write("config", "--batch 4");
  kill_worker(2);
  wait_for(0, 0, 0, 2);
  program_->wait_for_error("the other 2 go on; restarting it: restart 1 of 3");
  program_->wait_for_error("and was not taken in");
  const ProgramResult before = run_program({program_path("tutti"), "scale", folder_.path(), "3"});
  EXPECT_EQ(before.exit_code, exit_code(ErrorKind::PeerLost)) << before.out;
  EXPECT_THAT(before.out, HasSubstr("worker/2 has ended and was not taken in (worker/"));
  folder_.write("config", "--batch 2");
  const ProgramResult scaled = run_program({program_path("tutti"), "scale", folder_.path(), "3"});
  EXPECT_EQ(scaled.exit_code, 0) << scaled.out << scaled.err;
  finish();
  const std::string flags = "worker/[01] on [^ ]+ has '--batch 2', worker/2 on [^ ]+ has '--batch 4'";
  EXPECT_THAT(program_->err(), ContainsRegex("go on without it: " + flags));
  EXPECT_THAT(program_->err(), ContainsRegex("worker/2 .*ended with exit code 2 .*" + flags));
  EXPECT_THAT(program_->err(), Not(HasSubstr("restart 2 of 3")));
}

TEST_F(Refused, a_worker_that_fails_before_it_is_taken_in_ends_alone) {
  start({"--min", "1", "--restarts", "3"});
  folder_.write("broken", "");
  kill_worker(1);
  program_->wait_for_error("before it has come; the other 2 go on");
  finish();
  EXPECT_THAT(program_->err(), Not(HasSubstr("restart 2 of 3")));
}

// Its restart has not helped, and does not count.
TEST_F(Refused, a_worker_without_which_too_few_are_left_lets_the_whole_job_start_again) {
  start({"--min", "3", "--restarts", "1"});
  folder_.write("broken", "");
  kill_worker(1);
  program_->wait_for_error("the job ends: 2 of 3 workers are left, fewer than --min 3");
  program_->wait_for_error("ended with exit code 2 (InvalidArgument)");
  program_->wait_for_error("tutti run: restart 1 of 1\n");
  finish();
}

// The launcher of node 1 comes again, in many wrong ways and then in the right one.
class RefusedOnNodes : public RunMinOnNodes {
 protected:
  void lose_node(const Words& flags) {
    start(flags);
    kill(nodes_[1]->pid(), SIGKILL);
    wait_for(0, 0, 0, 2);
    wait_for(1, 0, 1, 2);
    expect_end(1, 128 + SIGKILL);
  }
  void expect_refused(const ::testing::Matcher<std::string>& why) {
    start_node(1);
    expect_end(1, exit_code(ErrorKind::InvalidArgument));
    EXPECT_THAT(err(1), why);
  }
  void return_and_finish() {
    start_node(1);
    nodes_[0]->wait_for_error("has come back: 4 go on");
    finish();
    expect_ends(0, 0);
  }
};

TEST_F(RefusedOnNodes, a_launcher_with_other_flags_of_the_program_ends_alone) {
  arguments_ = {"--batch 2", "--seed 7"};
  lose_node({"--min", "1", "--restarts", "2"});
  for (const Words& other :
       {Words{"--batch 4", "--seed 7"}, Words{"--batch 2"}, Words{"--batch 2", "--seed 8"}}) {
    arguments_ = other;
    expect_refused(AllOf(ContainsRegex("go on without it: worker/[01] on [^ ]+ has '--"),
                         HasSubstr("the others have taken in no worker of this host"),
                         Not(HasSubstr("tutti run: restart"))));
  }
  nodes_[0]->wait_for_error("and was not taken in (worker/");
  arguments_ = {"--batch 2", "--seed 7"};
  return_and_finish();
  EXPECT_THAT(err(0), ContainsRegex("has '--batch 2', worker/[23] on [^ ]+ has '--batch 4'"));
  EXPECT_THAT(err(0), Not(HasSubstr("ending")));
}

TEST_F(RefusedOnNodes, a_launcher_with_other_flags_of_its_own_ends_alone) {
  lose_node({"--min", "1"});
  const auto differs = [](const std::string& flag, const std::string& there, const std::string& here) {
    return HasSubstr(fmt::format("node 0 has '{} {}', node 1 has '{} {}'", flag, there, flag, here));
  };
  flags_ = {"--min", "2"};
  expect_refused(differs("--min", "1", "2"));
  flags_ = {"--min", "1", "--restarts", "4"};
  expect_refused(differs("--restarts", "0", "4"));
  flags_ = {"--min", "1", "--ps", "1"};
  expect_refused(differs("--ps", "0", "1"));
  flags_ = {"--min", "1", "--max", "4"};
  expect_refused(HasSubstr("--max 4 is not possible with several launchers"));
  flags_ = {"--min", "1"};
  slots_ = 3;
  expect_refused(HasSubstr("the job knows 2 workers on this host, not 3"));
  slots_ = kWorkers;
  secret_ = "theirs";
  expect_refused(HasSubstr("the launcher of node 0 has another secret"));
  secret_ = "ours";
  return_and_finish();
}

TEST_F(RefusedOnNodes, a_launcher_of_another_program_ends_alone) {
  lose_node({"--min", "1"});
  Words command = launcher(1, flags_);
  command[command.size() - 2] = "/bin/echo";
  const ProgramResult result = run_program(command, {mark_, "TUTTI_SECRET=ours"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("node 0 has 'program members_program', node 1 has 'program echo'"));
  return_and_finish();
}

// The test takes the place of node 0, whose version is another one.
TEST_F(RefusedOnNodes, a_launcher_of_another_version_ends_alone) {
  flags_ = {"--min", "1"};
  start_node(0);
  nodes_[0]->wait_for_error("waits up to");
  const net::Credentials ours{.secret = "ours"};
  const auto port = static_cast<uint16_t>(port_);
  auto found = comm::find_tcp_rendezvous(
                   {.hosts = {"127.0.0.1"}, .port = port, .credentials = ours, .purpose = "launchers"})
                   .board;
  std::string terms = found->get("terms", std::chrono::minutes(1));
  found.reset();
  kill(nodes_[0]->pid(), SIGKILL);
  expect_end(0, 128 + SIGKILL);
  const std::string word = "tutti ";
  const size_t at = terms.find(word) + word.size();
  const std::string version = terms.substr(at, terms.find('\n', at) - at);
  terms.replace(at, version.size(), "0.0.9");
  const auto served = comm::serve_tcp_rendezvous({.port = port, .credentials = ours, .purpose = "launchers"});
  served.board->set("terms", terms);
  expect_refused(HasSubstr(fmt::format("node 0 has 'tutti 0.0.9', node 1 has 'tutti {}'", version)));
}

// The launcher of node 2 comes to those who have lost node 0.
class RefusedInPods : public RunMinInPods {
 protected:
  // Three workers of nodes 0 and 1 are left, and node 1 has voted for them, so it can take the list over.
  void lose_node_and_worker() {
    start({"--min", "1"});
    kill_node(2);
    for (const int worker : {0, 1, 2, 3}) wait_for(worker, 0, worker, 4);
    kill_worker(0);
    wait_for(2, 0, 1, 3);
    wait_for_vote(1, epoch_of(2), 2);
  }
  void finish_without_the_first() {
    nodes_[1]->wait_for_error("has come back: 4 go on");
    finish();
    expect_end_on({{1, 0}, {2, 0}});
  }
};

TEST_F(RefusedInPods, a_launcher_that_comes_to_another_one_than_the_first_ends_alone) {
  lose_node_and_worker();
  kill_node(0);
  for (const int worker : {2, 3}) wait_for(worker, 0, worker - 2, 2);
  const auto expect_refused = [&](const std::string& why) {
    start_node(2);
    expect_end(2, 2);
    EXPECT_THAT(err(2), HasSubstr(why));
  };
  flags_ = {"--min", "2"};
  expect_refused("the launcher of node 1 refused this one: node 1 has '--min 1', node 2 has '--min 2'");
  flags_ = {"--min", "1"};
  secret_ = "theirs";
  expect_refused(fmt::format("the launcher at {} has another secret", addresses_[1]));
  secret_ = "ours";
  start_node(2);
  finish_without_the_first();
}

// The test answers as node 0 would do that has just been lost: with a keeper that is gone.
TEST_F(RefusedInPods, a_launcher_that_is_told_of_a_lost_one_asks_again) {
  lose_node_and_worker();
  const net::Credentials ours{.secret = "ours"};
  const auto port_of = [&](int node) {
    return static_cast<uint16_t>(std::stoi(addresses_[node].substr(addresses_[node].rfind(':') + 1)));
  };
  const auto told =
      comm::find_tcp_rendezvous(
          {.hosts = {"127.0.0.1"}, .port = port_of(0), .credentials = ours, .purpose = "launchers"})
          .board;
  const std::string terms = told->get("terms", std::chrono::minutes(1));
  const std::string answer = told->get("answer", std::chrono::minutes(1));
  kill_node(0);
  for (const int worker : {2, 3}) wait_for(worker, 0, worker - 2, 2);
  {
    const auto served =
        comm::serve_tcp_rendezvous({.port = port_of(0), .credentials = ours, .purpose = "launchers"});
    served.board->set("terms", terms);
    served.board->set("answer", answer);
    start_node(2);
    nodes_[2]->wait_for_error("asking again who has the list of the workers");
    served.board->set("answer", "");
  }
  finish_without_the_first();
}

// Its workers are on their way. It needs no --restarts for that.
TEST_F(RefusedInPods, a_launcher_that_loses_the_list_before_it_is_taken_in_comes_again) {
  lose_node_and_worker();
  folder_.write("hold", "");
  start_node(2);
  nodes_[2]->wait_for_output("[worker/4] is back");
  nodes_[2]->wait_for_output("[worker/5] is back");
  kill_node(0);
  for (const int worker : {2, 3}) wait_for(worker, 0, worker - 2, 2);
  std::filesystem::remove(folder_ / "hold");
  finish_without_the_first();
}

}  // namespace
}  // namespace tutti::testing::refused_members_test

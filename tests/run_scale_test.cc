// Tests how `tutti scale` changes the number of workers of `tutti run --min`, on one machine, over --nnodes
// and over -H, and how workers leave a machine that is about to be taken away (--preempt-signal). The workers
// are those of members_program.cc, which do not train.
#include <filesystem>
#include <map>
#include <signal.h>
#include <sys/stat.h>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/run_job.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/ports.h"

namespace tutti::testing::run_scale_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class RunScale : public Run {
 protected:
  void start(const Words& flags, const Words& environment = {}) {
    job_.emplace(Words{program_path("tutti"), "run"} + flags +
                     Words{"--", program_path("../test/members_program"), folder_.path()},
                 environment + Words{mark_});
  }
  // Waits until the worker says that it has this life, this rank and as many workers.
  void wait_for(int worker, int life, int rank, int workers) {
    job_->wait_for_output(said_by_member(worker, life, rank, workers));
  }
  ProgramResult scale(int workers, const Words& flags = {}, const std::string& job = "") const {
    return run_program(
        Words{program_path("tutti"), "scale", job.empty() ? folder_.path() : job, std::to_string(workers)} +
        flags);
  }
  // Expects success, and returns what was printed.
  std::string scaled(int workers) const {
    const ProgramResult result = scale(workers);
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err << job_->err();
    EXPECT_THAT(result.out, HasSubstr(fmt::format("the job has {} worker", workers)));
    return result.out;
  }
  void refused(int workers, const std::string& text) const {
    const ProgramResult result = scale(workers);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr("tutti scale: " + text));
  }
  void finish(int exit_code = 0) {
    folder_.write("finish", "");
    EXPECT_EQ(job_->wait(), exit_code) << job_->out() << job_->err();
    EXPECT_TRUE(nobody_is_left());
  }

  std::optional<RunningProgram> job_;
};

TEST_F(RunScale, starts_workers_and_lets_them_leave) {
  start({"-n", "2", "--min", "1", "--max", "4", "--restarts", "9"});
  wait_for(1, 0, 1, 2);
  EXPECT_THAT(scaled(4), AllOf(HasSubstr("scaling from 2 to 4 workers: starting worker/2, worker/3\n"),
                               HasSubstr("worker/2 has come\n"), HasSubstr("worker/3 has come\n")));
  wait_for(0, 0, 0, 4);
  EXPECT_THAT(scaled(1),
              AllOf(HasSubstr("from 4 to 1 worker: ending worker/1, worker/2, worker/3 after a step"),
                    HasSubstr("worker/3 has left\n")));
  wait_for(0, 0, 0, 1);
  scaled(3);
  job_->wait_for_output(begun_by_member(1, 1));
  job_->wait_for_output(begun_by_member(2, 2));
  EXPECT_THAT(scaled(3), Not(HasSubstr("scaling")));
  finish();
  EXPECT_THAT(job_->err(),
              AllOf(HasSubstr("worker/2 has come: "), HasSubstr("worker/2 has come back: "),
                    HasSubstr("tutti run: scaling from 4 to 1 worker: "), Not(HasSubstr("restarting it"))));
}

TEST_F(RunScale, takes_the_place_of_workers_that_were_lost) {
  start({"-n", "3", "--min", "1"});
  wait_for(1, 0, 1, 3);
  kill(pid_of_member(job_->out(), 1, 0), SIGKILL);
  wait_for(0, 0, 0, 2);
  EXPECT_THAT(scaled(3), HasSubstr("scaling from 2 to 3 workers: starting worker/1"));
  wait_for(1, 1, 2, 3);
  finish();
}

// That it has left before, as it was told, does not hide its error.
TEST_F(RunScale, ends_with_the_error_of_a_worker_that_had_left) {
  start({"-n", "2", "--min", "1"});
  wait_for(1, 0, 1, 2);
  scaled(1);
  scaled(2);
  wait_for(1, 1, 1, 2);
  folder_.write("new", std::to_string(exit_code(ErrorKind::Timeout)));
  std::filesystem::rename(folder_ / "new", folder_ / "fail-1");
  EXPECT_EQ(job_->wait(), exit_code(ErrorKind::Timeout)) << job_->err();
  EXPECT_TRUE(nobody_is_left());
}

// A worker that was started later is lost and restarted like the others.
TEST_F(RunScale, restarts_a_worker_that_it_has_started) {
  start({"-n", "1", "--min", "1", "--max", "2", "--restarts", "1"});
  wait_for(0, 0, 0, 1);
  scaled(2);
  wait_for(1, 1, 1, 2);
  kill(pid_of_member(job_->out(), 1, 1), SIGKILL);
  wait_for(1, 2, 1, 2);
  finish();
}

TEST_F(RunScale, refuses_numbers_for_which_there_is_no_room) {
  start({"-n", "2", "--min", "2", "--max", "3"});
  wait_for(1, 0, 1, 2);
  refused(1, "the job needs 2 workers: it was started with --min 2");
  refused(4, "the job has room for 3 workers; start it with a larger --max");
  finish();
}

TEST_F(RunScale, refuses_to_change_workers_that_have_to_stay_the_same) {
  folder_.write("fixed", "");
  start({"-n", "2", "--min", "1", "--max", "3"});
  wait_for(1, 0, 1, 2);
  for (const int workers : {1, 3})
    refused(workers, "the workers of this job stay the same: the test says so");
  finish();
}

TEST_F(RunScale, waits_no_longer_than_it_is_told_to) {
  folder_.write("hold", "");
  start({"-n", "1", "--min", "1", "--max", "2"});
  wait_for(0, 0, 0, 1);
  EXPECT_EQ(scale(2, {"--no-wait"}).exit_code, 0);
  job_->wait_for_output("[worker/1] is back");
  const ProgramResult late = scale(2, {"--timeout", "0.1"});
  EXPECT_THAT(late.exit_code, ::testing::AnyOf(0, 10, exit_code(ErrorKind::Timeout))) << late.err;
  std::filesystem::remove(folder_ / "hold");
  wait_for(1, 1, 1, 2);
  finish();
}

TEST_F(RunScale, says_why_there_is_no_job) {
  EXPECT_THAT(scale(2).err, HasSubstr("has no launcher.json: no job of `tutti run --min` has trained there"));
  std::filesystem::create_directory(folder_ / "one");
  folder_.write("one/launcher.json", "");
  EXPECT_THAT(scale(2).err, HasSubstr("trained there yet; trainings with a name are in " + folder_ / "one"));
  EXPECT_THAT(scale(2, {}, "nowhere").err, HasSubstr("there is no nowhere: give the --logdir"));
  start({"-n", "1", "--min", "1"});
  wait_for(0, 0, 0, 1);
  struct stat file {};
  ASSERT_EQ(stat((folder_ / "launcher.json").c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777U, 0600U) << "only the owner may scale the job";
  kill(job_->pid(), SIGSTOP);
  EXPECT_TRUE(eventually([this] { return state_of(job_->pid()) == 'T'; }));
  const ProgramResult stopped = scale(2);
  kill(job_->pid(), SIGCONT);
  EXPECT_EQ(stopped.exit_code, exit_code(ErrorKind::Timeout));
  EXPECT_THAT(stopped.err, HasSubstr("does not answer: check that it is not stopped"));
  finish();
  const ProgramResult late = scale(2);
  EXPECT_EQ(late.exit_code, exit_code(ErrorKind::PeerLost));
  EXPECT_THAT(late.err, HasSubstr("the job has ended: no launcher answers"));
}

TEST_F(RunScale, needs_limits_that_fit) {
  const auto fails = [&](const Words& flags, const std::string& text) {
    const ProgramResult result = run(flags, "echo never");
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr(text));
  };
  fails({"-n", "2", "--max", "4"}, "--max 4 needs --min M");
  fails({"-n", "3", "--min", "1", "--max", "2"}, "--max 2 is below the number of workers, 3");
  fails({"-H", "localhost:2", "--min", "1", "--max", "3"}, "too few for 3 workers");
  fails({"--nnodes", "2", "--rendezvous", "127.0.0.1:4000", "--min", "1", "--max", "3"},
        "--max 3 is not possible with several launchers");
  fails({"--preempt-signal", "TERM"}, "--preempt-signal TERM has another meaning already");
  fails({"--preempt-signal", "SOON"}, "--preempt-signal 'SOON' is not the name of a signal");
}

// The second host has nothing to do at the start.
TEST_F(RunScale, starts_workers_on_other_hosts) {
  start({"-H", "a:2,b:2", "--rsh", agent(), "-n", "2", "--min", "1", "--max", "4"});
  wait_for(1, 0, 1, 2);
  scaled(3);
  wait_for(2, 1, 2, 3);
  scaled(4);
  wait_for(3, 1, 3, 4);
  scaled(1);
  wait_for(0, 0, 0, 1);
  finish();
}

TEST_F(RunScale, a_machine_that_is_taken_away_ends_the_job_in_good_order) {
  start({"-n", "2", "--min", "1", "--preempt-signal", "SIGUSR1"});
  wait_for(1, 0, 1, 2);
  kill(job_->pid(), SIGUSR1);
  EXPECT_EQ(job_->wait(), 128 + SIGTERM) << job_->err();
  EXPECT_TRUE(nobody_is_left());
}

TEST_F(Run, passes_on_sigterm_when_its_machine_is_taken_away) {
  RunningProgram job(
      command({"-n", "2", "--preempt-signal", "USR1"},
              "trap 'echo ended; exit 5' TERM; kill -USR1 $$; echo ready; while :; do sleep 0.01; "
              "done"),
      {mark_});
  for (const int worker : {0, 1}) job.wait_for_output(fmt::format("[worker/{}] ready", worker));
  kill(job.pid(), SIGUSR1);
  EXPECT_EQ(job.wait(), 5) << job.err();
  for (const int worker : {0, 1}) EXPECT_THAT(job.out(), HasSubstr(fmt::format("[worker/{}] ended", worker)));
  EXPECT_THAT(job.err(), HasSubstr("received SIGUSR1, which counts as SIGTERM (--preempt-signal)"));
}

// Two nodes: workers 0 and 1 are on node 0, the others on node 1.
class RunScaleOnNodes : public Run {
 protected:
  void start_node(int node) {
    nodes_[node] = std::make_unique<RunningProgram>(
        launcher_of_node(node, address_) + Words{"-n", "2", "--min", "1", "--preempt-signal", "USR1", "--",
                                                 program_path("../test/members_program"), folder_.path()},
        Words{mark_, "TUTTI_SECRET=ours"});
  }
  void start() {
    for (const int node : {1, 0}) start_node(node);
    for (int worker = 0; worker < 4; ++worker) wait_for(worker, 0, worker, 4);
  }
  void wait_for(int worker, int life, int rank, int workers) {
    nodes_.at(worker / 2)->wait_for_output(said_by_member(worker, life, rank, workers));
  }
  ProgramResult scale(int workers, const std::string& secret = "ours") const {
    return run_program({program_path("tutti"), "scale", address_, std::to_string(workers)},
                       {"TUTTI_SECRET=" + secret});
  }
  void finish() {
    folder_.write("finish", "");
    for (const auto& [number, node] : nodes_) EXPECT_EQ(node->wait(), 0) << node->out() << node->err();
    EXPECT_TRUE(nobody_is_left());
  }

  const std::string address_ = fmt::format("127.0.0.1:{}", free_ports(1).front());
  std::map<int, std::unique_ptr<RunningProgram>> nodes_;
};

TEST_F(RunScaleOnNodes, needs_their_secret) {
  start();
  EXPECT_EQ(scale(2, "another").exit_code, 2);
  const ProgramResult fewer = scale(2);
  EXPECT_EQ(fewer.exit_code, 0) << fewer.out << fewer.err;
  wait_for(0, 0, 0, 2);
  const ProgramResult more = scale(4);
  EXPECT_EQ(more.exit_code, 0) << more.out << more.err;
  nodes_[1]->wait_for_output(begun_by_member(2, 1));
  finish();
}

// The workers that were to leave do not come back with their host.
TEST_F(RunScaleOnNodes, a_host_that_comes_again_has_the_workers_that_it_had) {
  start();
  EXPECT_EQ(scale(3).exit_code, 0);
  wait_for(0, 0, 0, 3);
  kill(nodes_[1]->pid(), SIGKILL);
  wait_for(0, 0, 0, 2);
  nodes_[1]->wait();
  start_node(1);
  wait_for(2, 1, 2, 3);
  EXPECT_EQ(scale(4).exit_code, 0);
  wait_for(3, 1, 3, 4);
  finish();
}

TEST_F(RunScaleOnNodes, a_machine_that_is_taken_away_loses_its_workers_alone) {
  start();
  kill(nodes_[1]->pid(), SIGUSR1);
  EXPECT_EQ(nodes_[1]->wait(), 128 + SIGTERM);
  wait_for(0, 0, 0, 2);
  nodes_.erase(1);
  finish();
}

// Its launcher has the list of the workers and stays.
TEST_F(RunScaleOnNodes, the_machine_of_the_list_loses_its_workers_alone) {
  start();
  for (int twice = 0; twice < 2; ++twice) kill(nodes_[0]->pid(), SIGUSR1);
  wait_for(2, 0, 0, 2);
  const ProgramResult more = scale(4);
  EXPECT_EQ(more.exit_code, exit_code(ErrorKind::PeerLost)) << more.err;
  EXPECT_THAT(more.out, HasSubstr("worker/0, worker/1 cannot be started (node 0 is about to be taken away)"));
  finish();
  EXPECT_THAT(nodes_[0]->err(), HasSubstr("received SIGUSR1: the workers of this host leave after a step"));
}

}  // namespace
}  // namespace tutti::testing::run_scale_test

// Tests how the workers of `tutti run --min` go on without those that are lost. The workers are those of
// members_program.cc, which do not train.
#include <filesystem>
#include <signal.h>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/run_job.h"
#include "tutti/base/file.h"

namespace tutti::testing::run_members_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class RunMin : public Run {
 protected:
  // Starts `tutti run -n WORKERS FLAGS -- members_program` and waits until all workers have begun.
  void start(int workers, const Words& flags) {
    program_.emplace(Words{program_path("tutti"), "run", "-n", std::to_string(workers)} + flags +
                         Words{"--", program_path("../test/members_program"), folder_.path()},
                     Words{mark_});
    for (int worker = 0; worker < workers; ++worker) wait_for(worker, 0, worker, workers);
  }
  // Waits until the worker says that it has this life, this rank and as many workers.
  void wait_for(int worker, int life, int rank, int workers) {
    program_->wait_for_output(said_by_member(worker, life, rank, workers));
  }
  pid_t pid_of(int worker, int life) const { return pid_of_member(program_->out(), worker, life); }
  void kill_worker(int worker, int life = 0, int signal = SIGKILL) const {
    if (const pid_t pid = pid_of(worker, life); pid > 0) kill(pid, signal);
  }
  // The launcher sees all these deaths together. The workers are in their `lives`, by worker.
  void kill_together(const std::vector<int>& lives) {
    kill(program_->pid(), SIGSTOP);
    EXPECT_TRUE(eventually([this] { return state_of(program_->pid()) == 'T'; }));
    for (size_t worker = 0; worker < lives.size(); ++worker) {
      const pid_t pid = pid_of(static_cast<int>(worker), lives[worker]);
      kill(pid, SIGKILL);
      EXPECT_TRUE(eventually([pid] { return state_of(pid) == 'Z'; }));
    }
    kill(program_->pid(), SIGCONT);
  }
  void finish(int exit_code = 0) {
    folder_.write("finish", "");
    end_with(exit_code);
  }
  void end_with(int exit_code) {
    EXPECT_EQ(program_->wait(), exit_code) << program_->out() << program_->err();
    EXPECT_TRUE(nobody_is_left());
  }
  const std::string& err() const { return program_->err(); }

  std::optional<RunningProgram> program_;
};

TEST_F(RunMin, ends_well_if_nobody_is_lost) {
  start(3, {"--min", "1"});
  finish();
  EXPECT_EQ(err(), "");
}

// The first worker is no exception.
TEST_F(RunMin, goes_on_without_a_worker_that_is_killed) {
  start(3, {"--min", "1"});
  kill_worker(0);
  wait_for(1, 0, 0, 2);
  wait_for(2, 0, 1, 2);
  finish();
  EXPECT_THAT(
      err(),
      ContainsRegex(
          "worker/0 \\(pid [0-9]+\\) was killed by SIGKILL \\(Killed\\) after [0-9.]+ s; the other 2 go on"));
  EXPECT_EQ(lines_of(err()).size(), 1U) << err();
}

TEST_F(RunMin, goes_on_without_two_that_are_killed_at_once) {
  start(4, {"--min", "2"});
  kill_worker(1);
  kill_worker(2);
  wait_for(0, 0, 0, 2);
  wait_for(3, 0, 1, 2);
  finish();
  EXPECT_THAT(err(), HasSubstr("worker/1 (pid "));
  EXPECT_THAT(err(), HasSubstr("worker/2 (pid "));
}

TEST_F(RunMin, ends_if_too_few_are_left) {
  start(3, {"--min", "3"});
  kill_worker(1);
  end_with(128 + SIGKILL);
  EXPECT_THAT(err(), HasSubstr("the job ends: 2 of 3 workers are left, fewer than --min 3"));
  EXPECT_THAT(err(), HasSubstr("worker/1 (pid "));
  EXPECT_THAT(err(), HasSubstr("ending 2 other tasks"));
}

TEST_F(RunMin, ends_if_all_are_killed_at_once) {
  start(2, {"--min", "1"});
  kill_together({0, 0});
  end_with(128 + SIGKILL);
  EXPECT_THAT(err(), HasSubstr("the job ends: none of the workers that trained is left"));
}

// The new start has all workers in their first lives, and a board of its own.
TEST_F(RunMin, restarts_the_whole_job_if_it_fails) {
  start(2, {"--min", "1", "--restarts", "2"});
  kill_worker(1);
  wait_for(1, 1, 1, 2);
  kill_together({0, 1});
  program_->wait_for_error("tutti run: restart 2 of 2\n");
  finish();
  EXPECT_THAT(err(), HasSubstr("restarting it: restart 1 of 2\n"));
  EXPECT_THAT(err(), HasSubstr("the job ends: none of the workers that trained is left"));
}

TEST_F(RunMin, a_worker_that_is_lost_before_the_training_joins_later) {
  folder_.write("untrained", "");
  start(3, {"--min", "1", "--restarts", "1"});
  kill_worker(1);
  wait_for(2, 0, 1, 2);
  program_->wait_for_output("[worker/1] is back");
  std::filesystem::remove(folder_ / "untrained");
  wait_for(1, 1, 2, 3);
  finish();
}

TEST_F(RunMin, takes_in_a_worker_that_it_has_started_again) {
  start(3, {"--min", "2", "--restarts", "1"});
  kill_worker(1);
  wait_for(1, 1, 2, 3);
  wait_for(2, 0, 1, 3);
  program_->wait_for_error("worker/1 has come back: 3 go on");
  kill_worker(1, 1);
  program_->wait_for_error("; the other 2 go on\n");
  finish();
  EXPECT_THAT(err(), HasSubstr("; the other 2 go on; restarting it: restart 1 of 1\n"));
  EXPECT_EQ(lines_of(err()).size(), 3U) << err();
}

TEST_F(RunMin, waits_for_a_worker_without_which_too_few_are_left) {
  start(2, {"--min", "2", "--restarts", "1"});
  kill_worker(0);
  wait_for(1, 0, 0, 2);
  wait_for(0, 1, 1, 2);
  finish();
  EXPECT_THAT(err(), HasSubstr("; 1 of 2 workers is left and waits for others to come back; restarting it"));
}

TEST_F(RunMin, kills_a_stopped_worker_for_which_others_have_waited_too_long) {
  start(2, {"--min", "1"});
  kill_worker(1, 0, SIGSTOP);
  program_->wait_for_error("worker/1 (pid ");
  folder_.write("late-0", "");
  wait_for(0, 0, 0, 1);
  finish();
  EXPECT_THAT(err(),
              ContainsRegex("worker/1 \\(pid [0-9]+\\) does not answer the other workers: killing it"));
  EXPECT_THAT(err(), HasSubstr("the other 1 goes on"));
}

TEST_F(RunMin, a_worker_that_fails_by_itself_ends_the_job) {
  start(3, {"--min", "1", "--restarts", "1"});
  folder_.write("fail-2", "");
  end_with(3);
  EXPECT_THAT(err(), HasSubstr("ended with exit code 3"));
  EXPECT_THAT(err(), HasSubstr("ending 2 other tasks"));
  EXPECT_THAT(err(), HasSubstr("tutti run: restart 1 of 1\n"));
  EXPECT_THAT(err(), Not(HasSubstr("restarting it")));
}

TEST_F(RunMin, a_signal_ends_the_job_in_good_order) {
  for (const bool after_a_loss : {false, true}) {
    start(3, {"--min", "1"});
    if (after_a_loss) {
      kill_worker(0);
      wait_for(2, 0, 1, 2);
    }
    kill(program_->pid(), SIGTERM);
    end_with(128 + SIGTERM);
  }
}

TEST_F(RunMin, a_signal_ends_a_job_that_waits_for_a_worker) {
  folder_.write("hold", "");
  start(2, {"--min", "2", "--restarts", "1"});
  kill_worker(1);
  program_->wait_for_output("[worker/1] is back");
  kill(program_->pid(), SIGTERM);
  end_with(128 + SIGTERM);
}

TEST_F(RunMin, a_signal_ends_the_pause_before_a_worker_is_started_again) {
  start(2, {"--min", "2", "--restarts", "2"});
  kill_worker(1);
  wait_for(1, 1, 1, 2);
  kill_worker(1, 1);
  program_->wait_for_error("restart 2 of 2 in 1 s\n");
  kill(program_->pid(), SIGTERM);
  end_with(128 + SIGTERM);
}

TEST_F(RunMin, nobody_survives_the_launchers_sudden_death) {
  start(3, {"--min", "1", "--restarts", "1"});
  kill_worker(1);
  wait_for(2, 0, 1, 2);
  kill(program_->pid(), SIGKILL);
  end_with(128 + SIGKILL);
}

TEST_F(RunMin, does_not_need_a_worker_that_is_back_too_late) {
  folder_.write("hold", "");
  start(2, {"--min", "1", "--restarts", "1"});
  kill_worker(0);
  program_->wait_for_output("[worker/0] is back");
  const pid_t last = pid_of(1, 0);
  folder_.write("finish", "");
  EXPECT_TRUE(eventually([last] { return kill(last, 0) != 0; }));
  std::filesystem::remove(folder_ / "hold");
  end_with(0);
  EXPECT_THAT(err(), HasSubstr("(PeerLost)"));
  EXPECT_THAT(err(), HasSubstr("; it was no longer needed"));
}

TEST_F(RunMin, refuses_what_it_cannot_do) {
  const auto refused = [&](const Words& flags, const std::string& text, const Words& environment = {}) {
    const auto result = run(flags, "echo never", environment);
    EXPECT_EQ(result.exit_code, 2) << result.out << result.err;
    EXPECT_THAT(result.err, HasSubstr(text));
    EXPECT_EQ(result.out, "");
  };
  refused({"-n", "3", "--min", "4"}, "--min 4 is not between 1 and the number of workers, 3");
  refused({"-n", "3", "--min", "0"}, "--min");
  refused({"-H", "localhost:2", "--min", "3"}, "--min 3 is not between 1 and the number of workers, 2");
  refused({"-n", "2", "--min", "1"}, "--min 1 is not possible with a master", {"TUTTI_STRATEGY=in-graph"});
  refused({"-n", "2", "--min", "1"}, "TUTTI_TIMEOUT='soon' is not a number", {"TUTTI_TIMEOUT=soon"});
  refused(
      {"--min", "1"}, "--min is not possible with the servers of TF_CONFIG",
      {R"(TF_CONFIG={"cluster": {"worker": ["a:1"], "ps": ["b:1"]}, "task": {"type": "worker", "index": 0}})"});
}

// The task knows nothing of the other host that its launcher does not.
TEST_F(RunMin, takes_a_TF_CONFIG_with_one_host_or_an_evaluator) {
  const auto with = [](const std::string& task) {
    return Words{R"(TF_CONFIG={"cluster": {"worker": ["127.0.0.1:4000"]}, "task": )" + task + "}"};
  };
  const std::string script = "echo \"[$_TUTTI_MEMBERS][$TF_CONFIG]\"";
  const auto worker = run({"--min", "1"}, script, with(R"({"type": "worker", "index": 0})"));
  EXPECT_EQ(worker.exit_code, 0) << worker.err;
  EXPECT_THAT(worker.out, ContainsRegex("\\[127.0.0.1:[0-9]+\\]\\[\\]"));
  const auto evaluator = run({"--min", "2"}, script, with(R"({"type": "evaluator", "index": 0})"));
  EXPECT_EQ(evaluator.exit_code, 0) << evaluator.err;
  EXPECT_THAT(evaluator.out, HasSubstr("[][{"));
}

TEST_F(RunMin, alone_gives_its_workers_a_board) {
  const std::string script = "echo \"[$_TUTTI_MEMBERS][$_TUTTI_LIFE]\"";
  const Words old = {"_TUTTI_MEMBERS=old", "_TUTTI_LIFE=7"};
  EXPECT_THAT(lines_of(run({"-n", "2"}, script, old).out), ::testing::Each(HasSubstr("[][]")));
  const auto result = run({"-n", "2", "--min", "1", "--evaluator"}, script, old);
  EXPECT_THAT(result.out, ContainsRegex("\\[worker/1\\] \\[127.0.0.1:[0-9]+\\]\\[0\\]"));
  EXPECT_THAT(result.out, HasSubstr("[evaluator/0] [][]"));
}

}  // namespace
}  // namespace tutti::testing::run_members_test

// Tests how a job of `tutti run` ends: by itself, by a signal or by a failure; and restarts.
#include <filesystem>
#include <fstream>
#include <signal.h>
#include <stdexcept>
#include <unistd.h>

#include <gmock/gmock.h>

#include "tests/run_job.h"

namespace tutti::testing::run_ends_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

class RunKilled : public Run, public ::testing::WithParamInterface<const char*> {};

TEST_P(RunKilled, names_the_task_and_the_signal_and_ends_the_others) {
  const std::string signal = GetParam();
  const std::string script =
      "if [ $TUTTI_TASK_INDEX = 1 ]; then echo last words; kill -" + signal + " $$; fi; sleep 1000";
  const auto start = std::chrono::steady_clock::now();
  const auto result = run({"-n", "3"}, script, {}, Crashes::AskedFor);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  EXPECT_THAT(result.err, HasSubstr("worker/1 (pid "));
  EXPECT_THAT(result.err, HasSubstr("was killed by SIG" + signal));
  EXPECT_THAT(result.err, HasSubstr("  | last words"));
  EXPECT_THAT(result.err, HasSubstr("ending 2 other tasks"));
  EXPECT_THAT(result.err, Not(HasSubstr("worker/0 (pid")));
  const std::map<std::string, int> codes = {
      {"KILL", 137}, {"SEGV", 139}, {"TERM", 143}, {"ABRT", 134}, {"BUS", 135}};
  EXPECT_EQ(result.exit_code, codes.at(signal));
  EXPECT_TRUE(nobody_is_left());
}

INSTANTIATE_TEST_SUITE_P(BySignal, RunKilled, ::testing::Values("KILL", "SEGV", "TERM", "ABRT", "BUS"),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(Run, says_what_tuttis_exit_codes_mean) {
  const auto result = run({"-n", "2"}, "[ $TUTTI_TASK_INDEX = 0 ] || exit 11; sleep 1000");
  EXPECT_EQ(result.exit_code, 11);
  EXPECT_THAT(result.err, HasSubstr("worker/1"));
  EXPECT_THAT(result.err, HasSubstr("ended with exit code 11 (Timeout)"));
}

// When rank 0 prints the cause, rank 1 has ended already and rank 0 has not.
TEST_F(Run, tells_the_cause_and_not_that_somebody_else_was_seen_to_be_gone) {
  const auto result =
      run({"-n", "2"}, "cd " + folder_.path() +
                           "; if [ $TUTTI_TASK_INDEX = 1 ]; then echo $$ >new; mv new pid; exit 10; fi; "
                           "until [ -e pid ] && ! kill -0 $(cat pid); do sleep 0.01; done; "
                           "echo why >&2; exit 3");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("worker/0"));
  EXPECT_THAT(result.err, HasSubstr("  | why\n"));
}

// A server is lost when the chief has ended, and a worker is being restarted: nothing must be restarted then.
TEST_F(Run, starts_nobody_again_when_the_chief_has_ended_well) {
  const std::string gone = "until [ -e pid0 ] && ! kill -0 $(cat pid0); do sleep 0.01; done; ";
  const std::string script = "cd " + folder_.path() +
                             "; if [ $TUTTI_JOB_NAME = worker ] && [ $TUTTI_TASK_INDEX = 0 ]; then echo $$ "
                             ">new; mv new pid0; exit 0; fi; " +
                             gone +
                             "if [ $TUTTI_JOB_NAME = ps ]; then echo $$ >new1; mv new1 pid1; kill -9 $$; fi; "
                             "until [ -e pid1 ] && ! kill -0 $(cat pid1); do sleep 0.01; done; kill -9 $$";
  const auto result = run({"--ps", "1", "-n", "2", "--restarts", "9"}, script);
  EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.err;
  EXPECT_THAT(result.err, HasSubstr("ps/0 is not restarted: the job is done"));
  EXPECT_THAT(result.err, HasSubstr("worker/1 is not restarted: the job is done"));
  EXPECT_THAT(result.err, Not(HasSubstr("restarting")));
}

TEST_F(Run, shows_the_last_ten_lines_of_both_streams) {
  const auto result =
      run({"-n", "2"}, "[ $TUTTI_TASK_INDEX = 1 ] && { seq 1 20; echo why >&2; exit 1; }; sleep 1000");
  EXPECT_THAT(result.err, HasSubstr("its last lines:\n  | "));
  EXPECT_THAT(result.err, HasSubstr("  | 20\n"));
  EXPECT_THAT(result.err, HasSubstr("  | why\n"));
  EXPECT_THAT(result.err, Not(HasSubstr("  | 5\n")));
}

TEST_F(Run, kills_what_will_not_end) {
  const auto result = run({"-n", "2"},
                          "trap '' TERM INT HUP; [ $TUTTI_TASK_INDEX = 1 ] && { sleep 1; exit 3; }; "
                          "while :; do sleep 1; done");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_TRUE(nobody_is_left());
}

TEST_F(Run, leaves_no_grandchild_behind_after_a_failure) {
  // The processes are in the same group, in the background, and in a session of their own.
  const auto result = run({"-n", "2"},
                          "sleep 1000 & setsid sleep 1000 & (setsid sh -c 'trap \"\" TERM; sleep 1000' &); "
                          "[ $TUTTI_TASK_INDEX = 1 ] && exit 5; wait");
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_THAT(processes_with(mark_), IsEmpty());
}

// Its environment does not show that it belongs to the job.
TEST_F(Run, leaves_no_grandchild_behind_that_has_an_empty_environment) {
  const std::string script = "cd " + folder_.path() +
                             "; (env -i setsid sh -c 'echo $$ >new; mv new pid; exec sleep 1000' &)"
                             "; until [ -e pid ]; do sleep 0.01; done";
  for (const char* workers : {"1", "2"}) {
    const auto result = run({"-n", workers}, script);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    pid_t grandchild = 0;
    std::ifstream(folder_ / "pid") >> grandchild;
    EXPECT_EQ(kill(grandchild, SIGKILL), -1) << "it still lives";
    std::filesystem::remove(folder_ / "pid");
  }
}

TEST_F(Run, leaves_a_child_alone_that_it_had_before) {
  const auto result = run_program(
      {"sh", "-c",
       "sleep 1000 >/dev/null 2>&1 & echo $!; exec " + program_path("tutti") + " run -n 2 -- true"},
      {mark_});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(kill(std::stoi(result.out), SIGKILL), 0) << "it was ended";
}

TEST_F(Run, leaves_no_grandchild_behind_after_success) {
  const auto result = run({}, "(setsid sleep 1000 >/dev/null 2>&1 &)");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(processes_with(mark_), IsEmpty());
}

TEST_F(Run, a_daemon_that_holds_the_pipes_does_not_hold_up_the_end) {
  const auto result = run({"-n", "2"}, "setsid sleep 1000 & echo done");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(lines_of(result.out), UnorderedElementsAre("[worker/0] done", "[worker/1] done"));
  EXPECT_THAT(processes_with(mark_), IsEmpty());
}

TEST_F(Run, says_that_the_output_of_the_tasks_could_not_be_written) {
  const std::string run = program_path("tutti") + " run --restarts 1 -n 2 -- sh -c ";
  const std::string tasks = "'echo lost; touch " + folder_.path() + "/done-$TUTTI_TASK_INDEX'";
  const auto result = run_program({"sh", "-c", run + tasks + " >/dev/full"}, {mark_});
  EXPECT_EQ(result.exit_code, 13) << result.err;
  EXPECT_THAT(result.err, HasSubstr("cannot be written (No space left on device): it is lost, and the job"));
  EXPECT_THAT(result.err, Not(HasSubstr("restart 1 of 1")));
  for (const char* task : {"0", "1"})
    EXPECT_TRUE(std::filesystem::exists(folder_ / ("done-" + std::string(task))));
}

TEST_F(Run, goes_on_after_a_hangup_if_it_was_started_by_nohup) {
  RunningProgram program(Words{"nohup"} + command({"-n", "2"}, "echo ready; until [ -e " + folder_.path() +
                                                                   "/go ]; do sleep 0.02; done; echo done"),
                         {mark_});
  program.wait_for_output("[worker/0] ready");
  program.wait_for_output("[worker/1] ready");
  kill(program.pid(), SIGHUP);
  folder_.write("go", "");
  EXPECT_EQ(program.wait(), 0) << program.err();
  EXPECT_THAT(program.out(), AllOf(HasSubstr("[worker/0] done"), HasSubstr("[worker/1] done")));
}

class RunInterrupted : public Run, public ::testing::WithParamInterface<int> {};

TEST_P(RunInterrupted, passes_the_signal_on_and_lets_the_tasks_end_well) {
  RunningProgram program(command({"-n", "2"},
                                 "trap 'sleep 0.2; echo saving; exit 0' INT TERM HUP; echo ready; "
                                 "while :; do sleep 0.05; done"),
                         {mark_});
  program.wait_for_output("[worker/0] ready");
  program.wait_for_output("[worker/1] ready");
  kill(program.pid(), GetParam());
  if (GetParam() == SIGHUP) kill(program.pid(), SIGHUP);  // a terminal that is closed sends two
  EXPECT_EQ(program.wait(), 0) << program.err();
  EXPECT_THAT(program.out(), HasSubstr("[worker/0] saving"));
  EXPECT_THAT(program.out(), HasSubstr("[worker/1] saving"));
  EXPECT_TRUE(nobody_is_left());
}

INSTANTIATE_TEST_SUITE_P(BySignal, RunInterrupted, ::testing::Values(SIGINT, SIGTERM, SIGHUP),
                         [](const auto& info) { return std::string(sigabbrev_np(info.param)); });

TEST_F(Run, the_tasks_get_one_signal_and_no_second) {
  RunningProgram program(command({"-n", "1"},
                                 "trap 'echo got one' INT; echo ready; i=0; "
                                 "while [ $i -lt 20 ]; do sleep 0.05; i=$((i+1)); done"),
                         {mark_});
  program.wait_for_output("ready");
  kill(program.pid(), SIGINT);
  program.wait();
  EXPECT_EQ(program.out(), "ready\ngot one\n");
}

TEST_F(Run, a_second_signal_kills) {
  RunningProgram program(command({"-n", "2"}, "trap 'echo no' INT; echo ready; while :; do sleep 0.05; done"),
                         {mark_});
  program.wait_for_output("[worker/0] ready");
  program.wait_for_output("[worker/1] ready");
  kill(program.pid(), SIGINT);
  program.wait_for_output("[worker/0] no");
  program.wait_for_output("[worker/1] no");
  kill(program.pid(), SIGINT);
  EXPECT_EQ(program.wait(), 137);
  EXPECT_TRUE(nobody_is_left());
}

TEST_F(Run, tasks_have_the_time_to_save_that_is_asked_for) {
  RunningProgram program(command({"-n", "2", "--grace", "1.5"}, "trap '' TERM; echo ready; sleep 1000"),
                         {mark_});
  program.wait_for_output("[worker/0] ready");
  program.wait_for_output("[worker/1] ready");
  kill(program.pid(), SIGTERM);
  EXPECT_EQ(program.wait(), 137);
  EXPECT_THAT(program.err(), HasSubstr("which have 1.5 s to end; a second signal kills them"));
  EXPECT_TRUE(nobody_is_left());
}

TEST_F(Run, an_interrupted_job_is_not_restarted) {
  RunningProgram program(command({"-n", "2", "--restarts", "3"}, "echo ready; sleep 1000"), {mark_});
  program.wait_for_output("[worker/0] ready");
  program.wait_for_output("[worker/1] ready");
  kill(program.pid(), SIGTERM);
  EXPECT_EQ(program.wait(), 143);
  EXPECT_THAT(program.err(), Not(HasSubstr("restart")));
}

TEST_F(Run, nobody_survives_the_launchers_sudden_death) {
  RunningProgram program(
      command({"-n", "2"},
              "(setsid sleep 1000 &) ; sleep 1000 & trap '' TERM HUP; echo ready; wait; sleep 1000"),
      {mark_});
  program.wait_for_output("[worker/0] ready");
  program.wait_for_output("[worker/1] ready");
  kill(program.pid(), SIGKILL);
  EXPECT_TRUE(nobody_is_left());
  EXPECT_EQ(program.wait(), 137);
}

// Otherwise one of the launcher's own pipes would get the number of a standard stream.
TEST_F(Run, ends_well_when_its_standard_streams_are_closed) {
  for (const char* closed : {"<&-", ">&-", "2>&-", "<&- >&-", ">&- 2>&-", "<&- >&- 2>&-"}) {
    for (const std::string workers : {"1", "2"}) {
      const std::string command = program_path("tutti") + " run -n " + workers +
                                  " -- sh -c 'cat; echo fine; echo fine >&2; echo x >" + folder_.path() +
                                  "/$TUTTI_TASK_INDEX' ";
      const auto result = run_program({"sh", "-c", command + closed}, {mark_});
      EXPECT_EQ(result.exit_code, 0) << command << closed << result.err;
      EXPECT_TRUE(std::filesystem::remove(folder_ / "0"));
      EXPECT_EQ(std::filesystem::remove(folder_ / "1"), workers == "2");
    }
  }
}

// Returns the process that watches the launcher; -1 if there is none yet.
pid_t child_named_guardian(pid_t launcher) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "stat");
    std::string pid, name, state;
    pid_t parent = 0;
    if (file >> pid >> name >> state >> parent && parent == launcher && name == "(tutti-guardian)")
      return std::stoi(pid);
  }
  return -1;
}

// A new process gets its name after a moment. Never returns -1, since kill(-1, ...) would reach all processes
// of this machine.
pid_t guardian_of(pid_t launcher) {
  pid_t guardian = -1;
  if (!eventually([&] { return (guardian = child_named_guardian(launcher)) > 0; }))
    throw std::runtime_error("there is no guardian");
  return guardian;
}

// Their environment does not show that they belong to the job, but their control group does.
TEST_F(Run, nobody_with_another_environment_survives_the_launchers_death_where_there_are_control_groups) {
  const std::string other = "OTHER_MARK_OF_THIS_TEST=" + folder_.path();
  RunningProgram program(
      command({"-n", "2"}, "grep '^0::.*/tutti-' /proc/self/cgroup; (env -i " + other +
                               " setsid sleep 1000 >/dev/null 2>&1 &); echo ready; exec sleep 1000"),
      {mark_});
  program.wait_for_output("[worker/0] ready");
  program.wait_for_output("[worker/1] ready");
  ASSERT_TRUE(eventually([&] { return processes_with(other).size() == 2; }));
  kill(program.pid(), SIGKILL);
  EXPECT_TRUE(nobody_is_left());
  const bool has_group = program.out().find("/tutti-") != std::string::npos;
  EXPECT_TRUE(!has_group || eventually([&] { return processes_with(other).empty(); }));
  for (const pid_t left : processes_with(other)) kill(left, SIGKILL);
  if (!has_group) GTEST_SKIP() << "NOT TESTED: no control group can be made here";
}

TEST_F(Run, a_guardian_that_is_stopped_does_not_hold_up_the_end) {
  RunningProgram program(
      command({"-n", "2"}, "echo ready; until [ -e " + folder_.path() + "/go ]; do sleep 0.01; done"),
      {mark_});
  program.wait_for_output("[worker/0] ready");
  const pid_t guardian = guardian_of(program.pid());
  kill(guardian, SIGSTOP);
  folder_.write("go", "");
  EXPECT_EQ(program.wait(), 0) << program.err();
  EXPECT_TRUE(eventually([&] { return kill(guardian, 0) != 0; }));
}

constexpr const char* kDetaches = "(setsid sleep 1000 &); trap '' TERM HUP; echo ready; sleep 1000";

TEST_F(Run, a_guardian_that_is_killed_is_replaced) {
  RunningProgram program(command({"-n", "2"}, kDetaches), {mark_});
  program.wait_for_output("[worker/0] ready");
  program.wait_for_output("[worker/1] ready");
  kill(guardian_of(program.pid()), SIGKILL);
  program.wait_for_error("a new one has been started");
  kill(program.pid(), SIGKILL);
  EXPECT_TRUE(nobody_is_left());
}

TEST_F(Run, nobody_survives_the_launchers_death_while_the_guardian_is_stopped) {
  RunningProgram program(command({"-n", "2"}, kDetaches), {mark_});
  program.wait_for_output("[worker/0] ready");
  program.wait_for_output("[worker/1] ready");
  kill(program.pid(), SIGSTOP);
  kill(guardian_of(program.pid()), SIGSTOP);
  kill(program.pid(), SIGKILL);
  EXPECT_TRUE(nobody_is_left());
}

TEST_F(Run, ends_when_nobody_reads_any_more) {
  const auto result =
      run_program({"sh", "-c", program_path("tutti") + " run -n 2 -- sh -c 'yes' | head -n 2"}, {mark_});
  EXPECT_EQ(lines_of(result.out).size(), 2U);
  EXPECT_TRUE(nobody_is_left());
}

TEST_F(Run, restarts_the_whole_group_until_it_succeeds) {
  // Each start leaves a line; worker 1 fails twice.
  const std::string log = folder_ / "starts";
  const std::string script = "echo $TUTTI_TASK_INDEX $TUTTI_CLUSTER_SPEC >>" + log +
                             "; if [ $TUTTI_TASK_INDEX = 1 ] && [ $(grep -c ^1 " + log +
                             ") -lt 3 ]; then exit 9; fi; [ $TUTTI_TASK_INDEX = 1 ] || sleep 0.3; echo fine";
  const auto result = run({"-n", "2", "--restarts", "5"}, script);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("restart 1 of 5"));
  EXPECT_THAT(result.err, HasSubstr("restart 2 of 5"));
  EXPECT_THAT(result.err, Not(HasSubstr("restart 3 of 5")));
}

TEST_F(Run, waits_longer_and_longer_before_restarts_of_what_fails_at_once) {
  const std::string script = "if [ $TUTTI_JOB_NAME = ps ]; then sleep 1000 & wait; fi; exit 3";
  for (const Words& servers : {Words{}, Words{"--ps", "1"}}) {
    const auto result = run(Words{"-n", "1", "--restarts", "3"} + servers, script);
    EXPECT_EQ(result.exit_code, 3) << result.err;
    EXPECT_THAT(result.err, HasSubstr("restart 1 of 3"));
    EXPECT_THAT(result.err, Not(HasSubstr("restart 1 of 3 in")));
    EXPECT_THAT(result.err, HasSubstr("restart 2 of 3 in 1 s"));
    EXPECT_THAT(result.err, HasSubstr("restart 3 of 3 in 2 s"));
  }
}

TEST_F(Run, a_signal_ends_the_pause_before_a_restart) {
  const std::string script = "if [ $TUTTI_JOB_NAME = ps ]; then sleep 1000 & wait; fi; exit 3";
  for (const Words& servers : {Words{}, Words{"--ps", "1"}}) {
    RunningProgram program(command(Words{"-n", "1", "--restarts", "1000"} + servers, script), {mark_});
    program.wait_for_error("in 2 s");
    kill(program.pid(), SIGTERM);
    EXPECT_EQ(program.wait(), 128 + SIGTERM) << program.err();
    EXPECT_TRUE(nobody_is_left());
  }
}

// Worker 1 waits for the chief, which is stopped before it has begun.
TEST_F(Run, restarts_the_task_that_is_stopped_and_not_only_those_that_wait_for_it) {
  const std::string script =
      "cd " + folder_.path() +
      "; if [ $TUTTI_JOB_NAME = ps ]; then until [ -e done ]; do sleep 0.01; done; exit 0; fi"
      "; if [ $TUTTI_TASK_INDEX = 0 ] && [ ! -e pid ]; then echo $$ >new; mv new pid; kill -STOP $$; fi"
      "; if [ $TUTTI_TASK_INDEX = 0 ]; then until [ -e again ]; do sleep 0.01; done; touch done; exit 0; fi"
      "; if [ -e waited ]; then touch again; until [ -e done ]; do sleep 0.01; done; exit 0; fi"
      "; until [ -e pid ]; do sleep 0.01; done"
      "; until grep -q '^State:.T' /proc/$(cat pid)/status; do sleep 0.01; done; touch waited; exit 11";
  const auto result = run({"--ps", "2", "-n", "2", "--restarts", "3"}, script, {}, Crashes::AskedFor);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("is stopped, so that worker/1 has waited in vain: killing it"));
  EXPECT_THAT(result.err, HasSubstr("restarting worker/1, which does not count as a restart"));
  EXPECT_THAT(result.err, HasSubstr("restarting worker/0: restart 1 of 3"));
  EXPECT_THAT(result.err, Not(HasSubstr("restart 2 of 3")));
}

// Both workers are dead before the launcher handles either.
TEST_F(Run, starts_each_of_those_again_that_fail_at_once_where_there_are_servers) {
  const std::string script =
      "cd " + folder_.path() +
      "; if [ $TUTTI_JOB_NAME = ps ]; then until [ -e again0 ] && [ -e again1 ]; do sleep 0.01; done; exit "
      "0; fi"
      "; me=$TUTTI_TASK_INDEX"
      "; if [ -e pid$me ]; then touch again$me; exit 0; fi"
      "; echo $$ >new$me; mv new$me pid$me"
      "; if [ $me = 1 ]; then until [ -e never ]; do sleep 0.01; done; fi"
      "; until [ -e pid1 ]; do sleep 0.01; done"
      "; kill -STOP $PPID; kill -9 $(cat pid1); (sleep 0.2; kill -CONT $PPID) & kill -9 $$";
  const auto result = run({"--ps", "1", "-n", "2", "--restarts", "2"}, script);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("restart 2 of 2"));
}

// Its servers are ended too.
TEST_F(Run, does_not_start_a_chief_again_that_was_told_to_stop) {
  const std::string script = "cd " + folder_.path() +
                             "; if [ $TUTTI_JOB_NAME = ps ]; then sleep 1000 & wait; fi"
                             "; echo started; exit 143";
  const auto result = run({"--ps", "1", "-n", "1", "--restarts", "2"}, script);
  EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.err;
  EXPECT_THAT(result.err, HasSubstr("worker/0 is not restarted: it received a stop signal"));
  EXPECT_EQ(lines_of(result.out).size(), 1U) << result.out;
  EXPECT_TRUE(nobody_is_left());
}

TEST_F(Run, starts_nobody_again_when_the_servers_have_ended) {
  const std::string script =
      "cd " + folder_.path() +
      "; if [ $TUTTI_JOB_NAME = ps ]; then echo $$ >new; mv new pid; exit 0; fi"
      "; until [ -e pid ]; do sleep 0.01; done; while kill -0 $(cat pid); do sleep 0.01; done; kill -9 $$";
  const auto result = run({"--ps", "1", "-n", "1", "--restarts", "2"}, script);
  EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.err;
  EXPECT_THAT(result.err, HasSubstr("the job is done"));
}

// The worker fails after its training, and the server has ended when it comes back.
TEST_F(Run, ends_with_the_first_error_of_a_worker_that_then_waited_in_vain) {
  const std::string script =
      "cd " + folder_.path() +
      "; if [ $TUTTI_JOB_NAME = ps ]; then echo $$ >new; mv new pid; until [ -e again ]; do sleep 0.01; "
      "done; exit 0; fi"
      "; until [ -e pid ]; do sleep 0.01; done; [ -e first ] || { touch first; exit 13; }"
      "; touch again; while kill -0 $(cat pid); do sleep 0.01; done; exit 11";
  for (const char* restarts : {"1", "3"}) {
    const auto result = run({"--ps", "1", "-n", "1", "--restarts", restarts}, script);
    EXPECT_EQ(result.exit_code, 13) << result.err;
    for (const char* file : {"pid", "first", "again"}) std::filesystem::remove(folder_ / file);
  }
}

// The stopped worker would never end by itself.
TEST_F(Run, kills_a_worker_that_is_stopped_when_the_job_is_done) {
  const std::string script = "cd " + folder_.path() +
                             "; if [ $TUTTI_TASK_INDEX = 1 ]; then touch ready; kill -STOP $$; fi"
                             "; until [ -e ready ]; do sleep 0.01; done";
  const auto result = run({"-n", "2"}, script);
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_THAT(result.err, HasSubstr("was stopped by SIGSTOP; continue it with kill -CONT"));
  EXPECT_THAT(result.err, HasSubstr("is still stopped, but the job is done: killing it"));
}

class RunWithFewProcesses : public Run, public ::testing::WithParamInterface<int> {};

// The user has no other processes. The limit prevents starting the guardian, then the first or the second
// task.
TEST_P(RunWithFewProcesses, says_that_there_are_too_many) {
  if (geteuid() != 0) GTEST_SKIP() << "NOT TESTED: only root can become a user without processes";
  const std::string user = std::to_string(1'000'000 + getpid());
  const Words as_user = {"setpriv", "--reuid", user, "--clear-groups"};
  const Words tutti = {program_path("tutti")};
  if (run_program(as_user + tutti + Words{"version"}).exit_code != 0)
    GTEST_SKIP() << "NOT TESTED: another user may not execute " << tutti[0];
  const Words limited = {"prlimit", "--nproc=" + std::to_string(GetParam())};
  // The sanitizer looks for leaks with a process of its own.
  const auto result = run_program(as_user + limited + tutti + Words{"run", "-n", "2", "--", "sleep", "1000"},
                                  {mark_, "ASAN_OPTIONS=detect_leaks=0"});
  EXPECT_EQ(result.exit_code, 13) << result.out << result.err;
  EXPECT_THAT(result.err, StartsWith("Overloaded: starting "));
  EXPECT_THAT(result.err, HasSubstr("ulimit -u"));
  EXPECT_EQ(lines_of(result.err).size(), 1U) << result.err;
  EXPECT_TRUE(nobody_is_left());
}

INSTANTIATE_TEST_SUITE_P(ByLimit, RunWithFewProcesses, ::testing::Values(1, 2, 3));

TEST_F(Run, says_that_there_are_too_few_files) {
  const auto result = run_program(
      {"sh", "-c", "ulimit -n 8; exec " + program_path("tutti") + " run -n 2 -- sleep 1000"}, {mark_});
  EXPECT_EQ(result.exit_code, 13) << result.out << result.err;
  // The first descriptor that fails depends on those that this process has left open.
  EXPECT_THAT(result.err, StartsWith("Overloaded: opening "));
  EXPECT_THAT(result.err, HasSubstr("Too many open files"));
  EXPECT_TRUE(nobody_is_left());
}

TEST_F(Run, gives_up_after_the_last_restart) {
  const auto result = run({"--restarts", "2"}, "echo start; exit 7");
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_EQ(lines_of(result.out).size(), 3U);
}

// --- With an evaluator

TEST_F(Run, waits_for_the_evaluator_at_the_end) {
  const auto result =
      run({"-n", "2", "--evaluator"},
          "cd " + folder_.path() +
              "; if [ $TUTTI_JOB_NAME = evaluator ]; then until [ -e done-0 ] && [ -e done-1 ]; do "
              "sleep 0.01; done; echo evaluated $TUTTI_TASK_INDEX; else touch done-$TUTTI_TASK_INDEX; fi");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("[evaluator/0] evaluated 0"));
}

TEST_F(Run, goes_on_without_an_evaluator_that_has_failed) {
  for (const std::string end : {"exit 12", "kill -KILL $$"}) {
    const TestFolder folder;
    const auto result =
        run({"-n", "2", "--evaluator"}, "cd " + folder.path() +
                                            "; if [ $TUTTI_JOB_NAME = evaluator ]; then touch gone; " + end +
                                            "; fi; until [ -e gone ]; do sleep 0.01; done");
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr("evaluator/0 (pid "));
    EXPECT_THAT(result.err, HasSubstr("evaluator/0 is lost, and the job goes on without it"));
  }
}

TEST_F(Run, restarts_the_evaluator_alone) {
  const auto result =
      run({"-n", "2", "--evaluator", "--restarts", "2"},
          "cd " + folder_.path() +
              "; echo x >>$TUTTI_JOB_NAME-$TUTTI_TASK_INDEX; if [ $TUTTI_JOB_NAME = evaluator ]; then "
              "[ $(wc -l <evaluator-0) = 3 ] || exit 11; touch good; fi; "
              "until [ -e good ]; do sleep 0.01; done");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("restarting evaluator/0: restart 2 of 2"));
  for (const char* worker : {"worker-0", "worker-1"}) {
    std::ifstream file(folder_ / worker);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "x\n") << "started once";
  }
}

TEST_F(Run, ends_the_evaluator_with_a_job_that_fails) {
  const auto result =
      run({"-n", "2", "--evaluator"},
          "[ $TUTTI_JOB_NAME = evaluator ] || [ $TUTTI_TASK_INDEX = 0 ] || exit 12; sleep 1000");
  EXPECT_EQ(result.exit_code, 12);
  EXPECT_THAT(result.err, Not(HasSubstr("is lost")));
  EXPECT_TRUE(nobody_is_left());
}

TEST_F(Run, kills_an_evaluator_that_is_stopped_when_the_job_is_done) {
  const auto result = run({"-n", "1", "--evaluator"},
                          "cd " + folder_.path() +
                              "; if [ $TUTTI_JOB_NAME = evaluator ]; then touch stops; kill -STOP $$; fi; "
                              "until [ -e stops ]; do sleep 0.01; done");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("evaluator/0 (pid "));
  EXPECT_THAT(result.err, HasSubstr("is still stopped, but the job is done: killing it"));
}

TEST_F(Run, an_evaluator_gets_a_share_of_the_cores_if_there_are_enough) {
  const auto cores = static_cast<size_t>(std::max<long>(1, sysconf(_SC_NPROCESSORS_ONLN)));
  const auto result = run({"-n", "1", "--evaluator"}, "echo has $(nproc) cores");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  if (cores < 2) GTEST_SKIP() << "NOT TESTED: there is one core only";
  EXPECT_THAT(result.out, Not(HasSubstr("[worker/0] has " + std::to_string(cores) + " cores")));
  EXPECT_THAT(result.out, Not(HasSubstr("[evaluator/0] has " + std::to_string(cores) + " cores")));
}

TEST_F(Run, an_evaluator_cannot_be_combined_with_TF_CONFIG) {
  const auto result =
      run({"--evaluator"}, "true",
          {R"(TF_CONFIG={"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}})"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("TF_CONFIG of its own"));
}

TEST_F(Run, an_evaluator_runs_on_the_first_of_several_hosts) {
  const auto result = run({"-H", "a:1,b:1", "--rsh", agent(), "--evaluator"}, "echo $HOST_OF_AGENT");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(lines_of(result.out), UnorderedElementsAre("[worker/0] a", "[evaluator/0] a", "[worker/1] b"));
}

}  // namespace
}  // namespace tutti::testing::run_ends_test

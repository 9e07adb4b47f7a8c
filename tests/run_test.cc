// Tests `tutti run` from a user's point of view: real processes, real signals.
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sched.h>
#include <set>
#include <signal.h>
#include <sstream>
#include <unistd.h>

#include <gmock/gmock.h>

#include "tests/tool.h"

namespace tutti::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Runs `tutti run FLAGS -- sh -c SCRIPT`, with a variable of this test in every process.
class Run : public ::testing::Test {
 protected:
  Run() {
    // The test must not depend on this machine's GPUs, nor on the launcher of the test.
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    unsetenv("TF_CONFIG");
  }
  std::vector<std::string> command(std::vector<std::string> flags, const std::string& script) const {
    std::vector<std::string> whole = {program_path("tutti"), "run"};
    whole.insert(whole.end(), flags.begin(), flags.end());
    whole.insert(whole.end(), {"--", "sh", "-c", script});
    return whole;
  }
  ProgramResult run(const std::vector<std::string>& flags, const std::string& script,
                    std::vector<std::string> environment = {}, Crashes crashes = Crashes::Fail) const {
    environment.push_back(mark_);
    return run_program(command(flags, script), environment, crashes);
  }
  bool nobody_is_left() const {
    return eventually([this] { return processes_with(mark_).empty(); });
  }

  TestFolder folder_;
  const std::string mark_ = "MARK_OF_THIS_TEST=" + folder_.path();
};

TEST_F(Run, tells_each_worker_who_it_is) {
  const auto result = run({"-n", "3"}, "echo $TUTTI_JOB_NAME $TUTTI_TASK_INDEX $TUTTI_CLUSTER_SPEC");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::set<std::string> clusters;
  std::vector<std::string> who;
  for (const std::string& line : lines_of(result.out)) {
    std::istringstream words(line);
    std::string prefix, job, index, cluster;
    words >> prefix >> job >> index >> cluster;
    who.push_back((prefix += " " + job) += " " + index);
    clusters.insert(cluster);
  }
  EXPECT_THAT(who, UnorderedElementsAre("[worker/0] worker 0", "[worker/1] worker 1", "[worker/2] worker 2"));
  ASSERT_EQ(clusters.size(), 1U);
  const std::string port = "127\\.0\\.0\\.1:[0-9]+";
  EXPECT_TRUE(std::regex_match(*clusters.begin(), std::regex("worker\\|" + port + ";" + port + ";" + port)))
      << *clusters.begin();
}

TEST_F(Run, one_worker_writes_to_the_terminal_itself) {
  const auto result = run({}, "printf 'no newline'; printf '\\r50 %%' >&2");
  EXPECT_EQ(result.out, "no newline");
  EXPECT_EQ(result.err, "\r50 %");
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  return CPU_COUNT(&set);
}

TEST_F(Run, shares_out_the_cores_unless_there_are_too_few) {
  const auto result =
      run({"-n", "2"}, "grep Cpus_allowed_list /proc/self/status; echo threads $OMP_NUM_THREADS");
  std::set<std::string> cores;
  for (const std::string& line : lines_of(result.out)) {
    if (line.find("Cpus_allowed_list") != std::string::npos) cores.insert(line.substr(line.find('\t')));
  }
  EXPECT_EQ(cores.size(), usable_cores() > 1 ? 2U : 1U) << result.out;
  const auto crowd = run({"-n", "500"}, "true");
  EXPECT_EQ(crowd.exit_code, 0) << crowd.err;
}

TEST_F(Run, leaves_the_number_of_threads_that_was_asked_for) {
  const auto result = run({"-n", "2"}, "echo $OMP_NUM_THREADS", {"OMP_NUM_THREADS=3"});
  EXPECT_THAT(lines_of(result.out), UnorderedElementsAre("[worker/0] 3", "[worker/1] 3"));
}

TEST_F(Run, never_mixes_lines_of_two_workers) {
  // Prints halves of lines, slowly, to both streams.
  const std::string script =
      "for i in $(seq 200); do printf 'half of %s.' $TUTTI_TASK_INDEX; printf 'other half of %s\\n' "
      "$TUTTI_TASK_INDEX; "
      "printf 'E%s' $TUTTI_TASK_INDEX >&2; printf 'e%s\\n' $TUTTI_TASK_INDEX >&2; done";
  const auto result = run({"-n", "3"}, script);
  const std::regex out_line("\\[worker/([0-9])\\] half of \\1\\.other half of \\1");
  const std::regex err_line("\\[worker/([0-9])\\] E\\1e\\1");
  for (const std::string& line : lines_of(result.out)) EXPECT_TRUE(std::regex_match(line, out_line)) << line;
  for (const std::string& line : lines_of(result.err)) EXPECT_TRUE(std::regex_match(line, err_line)) << line;
  EXPECT_EQ(lines_of(result.out).size(), 600U);
  EXPECT_EQ(lines_of(result.err).size(), 600U);
}

TEST_F(Run, passes_on_long_lines_and_last_ones_without_a_newline) {
  const auto result = run({"-n", "2"}, "head -c 300000 /dev/zero | tr '\\0' x; echo; printf end");
  const auto lines = lines_of(result.out);
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(), [](const auto& line) { return line.size() == 300011; }),
            2);
  EXPECT_THAT(lines, ::testing::IsSupersetOf({"[worker/0] end", "[worker/1] end"}));
}

TEST_F(Run, many_workers_that_print_much_lose_nothing) {
  const auto result = run({"-n", "4"}, "seq 50000");
  EXPECT_EQ(lines_of(result.out).size(), 200000U);
}

// Nobody reads the output until the end.
TEST_F(Run, a_reader_that_stalls_does_not_keep_a_failure_from_ending_the_job) {
  const std::string endless = "ENDLESS_OF_THIS_TEST=" + folder_.path();
  RunningProgram program(
      command({"-n", "2"}, "if [ $TUTTI_TASK_INDEX = 1 ]; then sleep 1; exit 3; fi; " + endless + " yes"),
      {mark_});
  EXPECT_TRUE(eventually([&] { return !processes_with(endless).empty(); }));
  EXPECT_TRUE(eventually([&] { return processes_with(endless).empty(); }));
  EXPECT_EQ(program.wait(), 3);
  EXPECT_THAT(program.err(), HasSubstr("worker/1 (pid "));
  EXPECT_TRUE(nobody_is_left());
}

TEST_F(Run, a_reader_that_stalls_does_not_keep_a_signal_from_ending_the_job) {
  const std::string endless = "ENDLESS_OF_THIS_TEST=" + folder_.path();
  RunningProgram program(command({"-n", "2"}, "echo ready; " + endless + " exec yes"), {mark_});
  program.wait_for_output("ready");
  EXPECT_TRUE(eventually([&] { return processes_with(endless).size() == 2; }));
  kill(program.pid(), SIGTERM);
  EXPECT_TRUE(eventually([&] { return processes_with(endless).empty(); }));
  EXPECT_EQ(program.wait(), 143);
  EXPECT_TRUE(nobody_is_left());
}

TEST_F(Run, a_slow_reader_gets_it_all) {
  const auto result = run_program(
      {"sh", "-c", program_path("tutti") + " run -n 2 -- seq 200000 | { sleep 2; wc -l; }"}, {mark_});
  EXPECT_EQ(result.out, "400000\n");
}

TEST_F(Run, a_grandchild_that_goes_on_printing_does_not_keep_a_failure_from_ending_the_job) {
  const auto result = run({"-n", "2"}, "[ $TUTTI_TASK_INDEX = 0 ] && sleep 1000; yes & sleep 0.3; exit 4");
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, HasSubstr("worker/1 (pid "));
  EXPECT_TRUE(nobody_is_left());
}

TEST_F(Run, tells_every_launch_from_all_others) {
  std::set<std::string> keys;
  for (const size_t launches : {1U, 2U}) {
    for (const std::string& line : lines_of(run({"-n", "2"}, "echo $_TUTTI_LAUNCH").out))
      keys.insert(line.substr(line.find(' ')));
    EXPECT_EQ(keys.size(), launches);
  }
}

TEST_F(Run, starts_a_worker_for_every_GPU_and_shows_each_its_own) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> lists = {
      {"0,1", {"[worker/0] 0", "[worker/1] 1"}},
      {"3,1,2", {"[worker/0] 3", "[worker/1] 1", "[worker/2] 2"}},
      {"0,1,-1,2", {"[worker/0] 0", "[worker/1] 1"}},
      {"GPU-8932f937,GPU-0c1f", {"[worker/0] GPU-8932f937", "[worker/1] GPU-0c1f"}},
      {"2", {"2"}},
      {"-1", {"-1"}},
      {"", {""}}};
  for (const auto& [list, lines] : lists) {
    const auto result = run({}, "echo $CUDA_VISIBLE_DEVICES", {"CUDA_VISIBLE_DEVICES=" + list});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(lines_of(result.out), ::testing::UnorderedElementsAreArray(lines)) << list;
    EXPECT_EQ(result.err, "");
  }
}

TEST_F(Run, believes_what_the_container_was_given) {
  unsetenv("CUDA_VISIBLE_DEVICES");
  const std::string script = "echo ${CUDA_VISIBLE_DEVICES-unset}";
  EXPECT_THAT(lines_of(run({}, script, {"NVIDIA_VISIBLE_DEVICES=4,6"}).out),
              UnorderedElementsAre("[worker/0] 0", "[worker/1] 1"));
  EXPECT_THAT(lines_of(run({}, script, {"NVIDIA_VISIBLE_DEVICES=MIG-a,MIG-b"}).out),
              UnorderedElementsAre("[worker/0] MIG-a", "[worker/1] MIG-b"));
  EXPECT_EQ(run({}, script, {"NVIDIA_VISIBLE_DEVICES=none"}).out, "unset\n");
}

TEST_F(Run, says_once_that_workers_and_GPUs_are_not_as_many) {
  const auto crowd = run({"-n", "3"}, "echo $CUDA_VISIBLE_DEVICES", {"CUDA_VISIBLE_DEVICES=4,5"});
  EXPECT_THAT(lines_of(crowd.out), UnorderedElementsAre("[worker/0] 4", "[worker/1] 5", "[worker/2] 4"));
  EXPECT_THAT(crowd.err, HasSubstr("warning: 3 workers on 2 GPUs"));
  EXPECT_EQ(lines_of(crowd.err).size(), 1U) << crowd.err;
  const std::vector<std::string> four = {"CUDA_VISIBLE_DEVICES=4,5,6,7", "TUTTI_LOG_LEVEL=info"};
  const auto few = run({"-n", "1"}, "echo $CUDA_VISIBLE_DEVICES", four);
  EXPECT_EQ(few.out, "4\n");
  EXPECT_THAT(few.err, HasSubstr("1 worker on 4 GPUs"));
  const auto quiet = run({"-n", "1"}, "true", {"CUDA_VISIBLE_DEVICES=4,5,6,7", "TUTTI_LOG_LEVEL=error"});
  EXPECT_EQ(quiet.err, "");
}

TEST_F(Run, refuses_a_GPU_that_is_named_twice) {
  const auto result = run({}, "true", {"CUDA_VISIBLE_DEVICES=0,1,0"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("CUDA_VISIBLE_DEVICES='0,1,0' names GPU '0' twice"));
}

// Replaces mpirun by a program that prints its arguments.
class RunOnHosts : public Run {
 protected:
  RunOnHosts() {
    const std::string mpirun = folder_.write("mpirun", "#!/bin/sh\necho mpirun \"$@\"; exec env\n");
    std::filesystem::permissions(mpirun, std::filesystem::perms(0700));
  }
  ProgramResult run_on(const std::string& hosts, std::vector<std::string> flags = {},
                       std::vector<std::string> environment = {}) const {
    flags.insert(flags.begin(), {"-H", hosts});
    environment.push_back("PATH=" + folder_.path() + ":/usr/bin:/bin");
    return run(flags, "echo never", std::move(environment));
  }
};

TEST_F(RunOnHosts, becomes_mpirun_with_the_sum_of_the_slots) {
  const auto result = run_on("a:2,b:3");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, StartsWith("mpirun -np 5 -H a:2,b:3 --bind-to none"));
  EXPECT_THAT(lines_of(result.out)[0], ::testing::EndsWith("sh -c echo never"));
  EXPECT_THAT(result.err, HasSubstr("tutti run mpirun -np 5 -H a:2,b:3"));
  EXPECT_THAT(result.err, HasSubstr("sh -c 'echo never'\n"));
  EXPECT_THAT(run_on("a:2,b:3", {"-n", "4"}).out, StartsWith("mpirun -np 4 -H a:2,b:3"));
  EXPECT_EQ(run_on("a", {}, {"TUTTI_LOG_LEVEL=warning"}).err, "");
}

TEST_F(RunOnHosts, takes_our_variables_along_but_nobodys_identity) {
  const auto result = run_on("a", {}, {"TUTTI_LANES=8", "TUTTI_JOB_NAME=worker", "TUTTI_TASK_INDEX=1"});
  EXPECT_THAT(lines_of(result.out)[0], HasSubstr("-x TUTTI_LANES"));
  EXPECT_THAT(result.out, HasSubstr("\nTUTTI_LANES=8\n"));
  EXPECT_THAT(result.out, Not(HasSubstr("TUTTI_JOB_NAME")));
  EXPECT_THAT(result.out, Not(HasSubstr("TUTTI_TASK_INDEX")));
}

TEST_F(RunOnHosts, forwards_the_variables_that_x_names) {
  const auto result = run_on("a", {"-x", "COLOUR", "-x", "MODE=a b"}, {"COLOUR=red"});
  EXPECT_THAT(lines_of(result.out)[0], HasSubstr("-x COLOUR -x MODE=a b "));
  EXPECT_THAT(result.err, HasSubstr("-x COLOUR -x 'MODE=a b' "));
  EXPECT_THAT(run_on("a", {"-x", "NOWHERE"}).err, HasSubstr("-x NOWHERE: the variable is not set here"));
}

TEST_F(Run, gives_the_workers_the_variables_that_x_names) {
  const auto result = run({"-n", "2", "-x", "COLOUR=red", "-x", "MARK_OF_THIS_TEST"}, "echo $COLOUR");
  EXPECT_THAT(lines_of(result.out), UnorderedElementsAre("[worker/0] red", "[worker/1] red"));
  EXPECT_EQ(run({"-x", "NOWHERE"}, "true").exit_code, 2);
}

TEST_F(RunOnHosts, refuses_what_it_does_not_understand_and_quotes_it) {
  const auto refused = [&](const std::string& text, const ProgramResult& result) {
    EXPECT_EQ(result.exit_code, 2) << result.out;
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, HasSubstr(text));
    EXPECT_EQ(lines_of(result.err).size(), 1U) << result.err;
  };
  refused("empty entry", run_on(""));
  refused("'x' in 'b:x'", run_on("a:2,b:x"));
  refused("'a' twice", run_on("a:2,a:2"));
  refused("5 workers", run_on("a:2,b:2", {"-n", "5"}));
  refused("--restarts 1", run_on("a:2", {"--restarts", "1"}));
  refused("TF_CONFIG", run_on("a:2", {}, {"TF_CONFIG={\"cluster\": {}}"}));
}

TEST_F(RunOnHosts, says_where_to_get_mpirun_where_there_is_none) {
  std::filesystem::remove(folder_ / "mpirun");
  const auto result = run({"-H", "a:2"}, "true", {"PATH=" + folder_.path()});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("apt-get install openmpi-bin"));
}

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

class RunInterrupted : public Run, public ::testing::WithParamInterface<int> {};

TEST_P(RunInterrupted, passes_the_signal_on_and_lets_the_tasks_end_well) {
  RunningProgram program(command({"-n", "2"},
                                 "trap 'echo saving; exit 0' INT TERM HUP; echo ready; "
                                 "while :; do sleep 0.05; done"),
                         {mark_});
  program.wait_for_output("[worker/0] ready");
  program.wait_for_output("[worker/1] ready");
  kill(program.pid(), GetParam());
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

// Returns the process that watches the launcher, or -1.
pid_t guardian_of(pid_t launcher) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "stat");
    std::string pid, name, state;
    pid_t parent = 0;
    if (file >> pid >> name >> state >> parent && parent == launcher && name == "(tutti-guardian)")
      return std::stoi(pid);
  }
  ADD_FAILURE() << "there is no guardian";
  return -1;
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
  const auto result =
      run_program(as_user + limited + tutti + Words{"run", "-n", "2", "--", "sleep", "1000"}, {mark_});
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

TEST_F(Run, a_program_that_is_not_there_is_one_readable_line) {
  for (const char* workers : {"1", "3"}) {
    const auto result = run_program(
        {program_path("tutti"), "run", "-n", workers, "--restarts", "2", "--", "no-such-program"});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, StartsWith("InvalidArgument: no-such-program: there is no such program"));
    EXPECT_EQ(lines_of(result.err).size(), 1U);
  }
}

TEST_F(Run, a_file_that_is_no_program_is_one_readable_line) {
  const std::string file = folder_ / "plain.txt";
  std::ofstream(file) << "text";
  const auto result = run_program({program_path("tutti"), "run", "--", file});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("chmod +x"));
}

TEST_F(Run, flags_behind_the_program_are_the_programs) {
  const std::string tutti = program_path("tutti");
  EXPECT_EQ(run_program({tutti, "run", "-n", "1", "--", "echo", "-n", "2", "--", "x"}).out, "2 -- x");
  EXPECT_EQ(run_program({tutti, "run", "echo", "a", "--", "b"}).out, "a -- b\n");
}

TEST_F(Run, refuses_what_it_does_not_understand) {
  const std::string tutti = program_path("tutti");
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{{"-n", "0"},
                                                                                     {"-n", "x"},
                                                                                     {"-n"},
                                                                                     {"--restarts", "-1"},
                                                                                     {"--restart", "1"},
                                                                                     {"-H"},
                                                                                     {"--start-timeout", "0"},
                                                                                     {"--start-timeout", "x"},
                                                                                     {}}) {
    std::vector<std::string> command = {tutti, "run"};
    command.insert(command.end(), flags.begin(), flags.end());
    if (!flags.empty()) command.insert(command.end(), {"--", "true"});
    const auto result = run_program(command);
    EXPECT_EQ(result.exit_code, 2) << ::testing::PrintToString(flags);
    EXPECT_EQ(lines_of(result.err).size(), 1U) << result.err;
  }
  EXPECT_THAT(run_program({tutti, "run", "--restart", "1", "--", "true"}).err,
              HasSubstr("did you mean '--restarts'?"));
}

TEST(Tutti, suggests_the_command_that_was_meant) {
  const auto result = run_program({program_path("tutti"), "inspekt"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("did you mean 'inspect'?"));
}

TEST(Tutti, helps_and_tells_its_version) {
  const std::string tutti = program_path("tutti");
  EXPECT_THAT(run_program({tutti, "help"}).out, HasSubstr("usage: tutti COMMAND"));
  EXPECT_EQ(run_program({tutti}).exit_code, 2);
  EXPECT_THAT(run_program({tutti, "run", "--help"}).out, HasSubstr("--restarts"));
  EXPECT_THAT(run_program({tutti, "--version"}).out, StartsWith("tutti "));
}

}  // namespace
}  // namespace tutti::testing

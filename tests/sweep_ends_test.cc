// Tests how sweeps and their runs end: failures, kills, signals, and what follows.
#include <cerrno>
#include <csignal>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/sweep.h"
#include "tutti/base/test_refused_calls.h"

namespace tutti::testing::sweep_ends_test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

TEST_F(SweepOf, a_failing_run_is_named_with_the_end_of_its_output_and_the_others_go_on) {
  const ProgramResult result = sweep({"--set", "x=3,1,2", "-n", "1"},
                                     "if [ $x = 3 ]; then echo one; echo 'the cause' >&2; exit 7; fi");
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("run-1 ended with exit code 7"), HasSubstr("  | one\n  | the cause")));
  EXPECT_EQ(results().at("runs")[0].at("state"), "failed");
  EXPECT_EQ(results().at("runs")[2].at("state"), "finished");
  EXPECT_THAT(result.out, HasSubstr("failed"));
  // A second sweep in the folder tries the failed run again, and no other.
  std::filesystem::rename(top_ + "/run-1/starts", top_ + "/run-1/former");
  EXPECT_EQ(
      sweep({"--set", "x=3,1,2", "-n", "1"}, "if [ $x = 3 ]; then echo one; echo 'the cause' >&2; exit 7; fi")
          .exit_code,
      7);
  EXPECT_EQ(starts(1), "8 ");
  EXPECT_EQ(starts(2), "8 ");
}

TEST_F(SweepOf, a_run_without_a_report_fails_and_the_others_go_on) {
  const ProgramResult result = sweep({"--set", "x=3,1,2,4", "-n", "1"},
                                     "if [ $x = 3 ]; then echo here; exit 0; fi\n"
                                     "if [ $x = 2 ]; then echo '{' > $report; exit 0; fi\n"
                                     "if [ $x = 4 ]; then complete=false; step=7; fi");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("run-1 ended with exit code 0, but has not written the report"),
                                HasSubstr("has to call tutti::run"), HasSubstr("  | here"),
                                HasSubstr("run-3 ended with exit code 0, but its report cannot be read"),
                                HasSubstr("run-4 ended with exit code 0, but its report says that it was not "
                                          "complete after step 7")));
  EXPECT_EQ(results().at("runs")[0].at("state"), "failed");
  EXPECT_EQ(results().at("runs")[1].at("state"), "finished");
  EXPECT_EQ(std::filesystem::read_symlink(top_ + "/best"), "run-2");
}

TEST_F(SweepOf, ends_well_on_a_file_system_without_links_and_says_which_run_is_the_best) {
  ProgramResult result;
  if (!with_refused_calls(link_calls(), EPERM, [&] { result = sweep({"--set", "x=3,1"}); }))
    GTEST_SKIP() << "NOT TESTED: this process may not filter system calls";
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("there is no link '" + top_ + "/best' to the best run, run-2"));
}

TEST_F(SweepOf, a_program_that_never_writes_a_report_is_told_what_to_call) {
  const ProgramResult result = sweep({"--set", "x=3,1"}, "exit 0");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("has to call tutti::run"));
  EXPECT_FALSE(has_file("best"));
}

TEST_F(SweepOf, a_killed_run_is_restarted_a_bounded_number_of_times) {
  const std::string once = "if [ $x = 1 ] && ! [ -e $dir/again ]; then touch $dir/again; kill -KILL $$; fi";
  const ProgramResult result = sweep({"--set", "x=3,1"}, once);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("run-2 was killed by SIGKILL (Killed); restart 1 of 3"));
  EXPECT_EQ(starts(2), "8 8 ");
  EXPECT_EQ(results().at("runs")[1].at("restarts"), 1);
}

TEST_F(SweepOf, a_run_that_is_killed_again_and_again_fails) {
  const ProgramResult result =
      sweep({"--set", "x=3,1", "--restarts", "2"}, "if [ $x = 1 ]; then kill -KILL $$; fi");
  EXPECT_EQ(result.exit_code, 137);
  EXPECT_EQ(starts(2), "8 8 8 ");
  EXPECT_EQ(starts(1), "8 ");
}

TEST_F(SweepOf, a_stopped_run_comes_back_in_place_of_one_that_fails) {
  const ProgramResult result =
      sweep({"--set", "x=4,1,3,2", "--halving"}, "if [ $x = 1 ] && [ $step = 4 ]; then exit 9; fi");
  EXPECT_EQ(result.exit_code, 9);
  EXPECT_EQ(starts(2), "2 4 ");
  EXPECT_EQ(starts(3), "2 4 ");
  EXPECT_EQ(starts(4), "2 4 8 ");
  EXPECT_EQ(std::filesystem::read_symlink(top_ + "/best"), "run-4");
}

TEST_F(SweepOf, a_killed_sweep_goes_on_when_it_is_run_again) {
  const std::string wait = "if [ $x = 2 ] && ! [ -e $top/go ]; then touch $dir/waits; exec sleep 1000; fi";
  const Words flags = {"--set", "x=3,1,2,4", "-n", "1"};
  {
    RunningProgram killed(command(flags, wait), {mark_});
    ASSERT_TRUE(eventually([&] { return has_file("run-3/waits"); }));
    ::kill(killed.pid(), SIGKILL);
    killed.wait();
  }
  EXPECT_TRUE(nobody_is_left());
  replace_file(top_ + "/go", "");
  const ProgramResult result = sweep(flags, wait);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(starts(1), "8 ");
  EXPECT_EQ(starts(2), "8 ");
  EXPECT_EQ(starts(3), "8 8 ");
  EXPECT_EQ(starts(4), "8 ");
}

// The guardian of `tutti run` is killed with the sweep, so that of the sweep has to find the inner tasks and
// what they have started. A shell passes on only one of two variables with the same name.
TEST_F(SweepOf, a_killed_sweep_leaves_nothing_of_inner_jobs_behind) {
  const std::string script =
      "train() { sh -c 'setsid sleep 1000 >/dev/null 2>&1 & exec sleep 1000' &\n"
      "touch $dir/waits-$TUTTI_TASK_INDEX; sleep 1000; }\n";
  const std::vector<Words> workers = {{"-n", "2"}, {"-n", "2"}, {"-n", "2"}, {"-H", "localhost:2"}};
  for (const Words& given : workers) {
    RunningProgram killed(Words{program_path("tutti"), "sweep", "--logdir", top_, "--set", "x=3", "-n", "1",
                                "--", program_path("tutti"), "run"} +
                              given + Words{"--", "sh", "-c", script + kProgram, "program"},
                          {mark_});
    ASSERT_TRUE(eventually([&] { return has_file("run-1/waits-0") && has_file("run-1/waits-1"); }))
        << killed.err();
    ::kill(killed.pid(), SIGKILL);
    EXPECT_EQ(killed.wait(), 128 + SIGKILL) << killed.err();
    ASSERT_TRUE(nobody_is_left()) << given.back();
    std::filesystem::remove_all(top_);
  }
}

// The processes of the killed sweep may not have ended yet.
TEST_F(SweepOf, a_killed_sweep_may_be_run_again_at_once) {
  const Words flags = {"--set", "x=3,1", "-n", "2"};
  for (int attempt = 0; attempt < 5; ++attempt) {
    RunningProgram killed(command(flags, "touch $dir/waits; sleep 1000"), {mark_});
    ASSERT_TRUE(eventually([&] { return has_file("run-1/waits") && has_file("run-2/waits"); }))
        << killed.err();
    ::kill(killed.pid(), SIGKILL);
    EXPECT_EQ(killed.wait(), 128 + SIGKILL) << killed.err();
    std::filesystem::remove(top_ + "/run-1/waits");
    std::filesystem::remove(top_ + "/run-2/waits");
  }
  EXPECT_TRUE(nobody_is_left());
}

TEST_F(SweepOf, a_damaged_file_of_results_is_named_with_what_to_do) {
  ASSERT_EQ(sweep({"--set", "x=3,1"}).exit_code, 0);
  replace_file(top_ + "/sweep.json", "{");
  const ProgramResult damaged = sweep({"--set", "x=3,1"});
  EXPECT_EQ(damaged.exit_code, 12);
  EXPECT_THAT(damaged.err, AllOf(HasSubstr(top_ + "/sweep.json"), HasSubstr("without this file")));
  std::filesystem::remove(top_ + "/sweep.json");
  EXPECT_EQ(sweep({"--set", "x=3,1"}).exit_code, 0);
  EXPECT_EQ(starts(1), "8 8 ");
}

TEST_F(SweepOf, a_signal_ends_all_runs_in_good_order) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const std::string wait =
        "trap 'echo saved > $dir/saved; exit 143' TERM; touch $dir/waits; while :; do sleep 0.01; done";
    RunningProgram stopped(command({"--set", "x=3,1,2", "-n", "2"}, wait), {mark_});
    ASSERT_TRUE(eventually([&] { return has_file("run-1/waits") && has_file("run-2/waits"); }));
    ::kill(stopped.pid(), signal);
    EXPECT_EQ(stopped.wait(), 128 + signal);
    EXPECT_TRUE(has_file("run-1/saved"));
    EXPECT_TRUE(has_file("run-2/saved"));
    EXPECT_FALSE(has_file("run-3"));
    EXPECT_TRUE(nobody_is_left());
    std::filesystem::remove_all(top_);
  }
}

TEST_F(SweepOf, an_interrupted_sweep_says_how_to_continue_it) {
  const std::string wait =
      "[ -e $top/go ] || { trap 'exit 143' TERM; touch $dir/waits; while :; do sleep 0.01; done; } # isn't";
  RunningProgram stopped(command({"--set", "x=3,1", "-n", "1"}, wait), {mark_});
  ASSERT_TRUE(eventually([&] { return has_file("run-1/waits"); }));
  ::kill(stopped.pid(), SIGINT);
  EXPECT_EQ(stopped.wait(), 130);
  const std::string sign = "to continue this sweep: tutti ";
  ASSERT_THAT(stopped.err(), HasSubstr(sign + "sweep --logdir " + top_ + " --set x=3,1 -n 1 -- sh -c '"));
  replace_file(top_ + "/go", "");
  const std::string line = stopped.err().substr(stopped.err().find(sign) + sign.size());
  const ProgramResult result = run_program({"sh", "-c", program_path("tutti") + " " + line}, {mark_});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(starts(1), "8 8 ");
}

TEST_F(SweepOf, runs_that_were_interrupted_are_shown_so_with_the_steps_of_their_reports) {
  const std::string wait = R"(
if [ -e $top/go ]; then return; fi
trap 'if [ $x = 3 ]; then echo "{\"steps\": 5, \"complete\": false, \"loss\": 7, \"weights_sha256\": \"w\"}" > $report; fi
      exit 143' TERM
touch $dir/waits
while :; do sleep 0.01; done)";
  const Words flags = {"--set", "x=3,1,2", "-n", "2"};
  const auto both_wait = [&] { return has_file("run-1/waits") && has_file("run-2/waits"); };
  RunningProgram stopped(command(flags, wait), {mark_});
  ASSERT_TRUE(eventually(both_wait));
  EXPECT_TRUE(eventually([&] { return results().at("runs")[1].at("state") == "running"; }));
  ::kill(stopped.pid(), SIGINT);
  EXPECT_EQ(stopped.wait(), 130);
  EXPECT_THAT(stopped.out(), AllOf(ContainsRegex("run-1 +3 +5 +7 +[0-9.]+  interrupted"),
                                   ContainsRegex("run-2 +1 +[0-9.]+  interrupted"),
                                   ContainsRegex("run-3 +2 +[0-9.]+  not run")));
  // Also if the sweep was killed before.
  std::filesystem::remove(top_ + "/run-1/waits");
  std::filesystem::remove(top_ + "/run-2/waits");
  RunningProgram killed(command(flags, wait), {mark_});
  ASSERT_TRUE(eventually(both_wait));
  ::kill(killed.pid(), SIGKILL);
  killed.wait();
  EXPECT_TRUE(nobody_is_left());
  std::filesystem::remove(top_ + "/run-1/waits");
  RunningProgram again(command({"--set", "x=3,1,2", "-n", "1"}, wait), {mark_});
  ASSERT_TRUE(eventually([&] { return has_file("run-1/waits"); }));
  ::kill(again.pid(), SIGTERM);
  EXPECT_EQ(again.wait(), 143);
  EXPECT_THAT(again.out(), AllOf(ContainsRegex("run-2 +1 +[0-9.]+  interrupted"),
                                 ContainsRegex("run-3 +2 +[0-9.]+  not run")));
  replace_file(top_ + "/go", "");
  EXPECT_EQ(sweep(flags, wait).exit_code, 0);
  for (const json& run : results().at("runs")) EXPECT_EQ(run.at("state"), "finished") << run;
}

TEST_F(SweepOf, a_run_that_is_stopped_is_named_and_ends_with_the_sweep) {
  RunningProgram stopped(command({"--set", "x=3", "-n", "1"}, "touch $dir/waits; kill -STOP $$; sleep 1000"),
                         {mark_});
  stopped.wait_for_error("was stopped by SIGSTOP");
  EXPECT_THAT(stopped.err(), ContainsRegex("run-1 \\(pid [0-9]+\\) was stopped by SIGSTOP"));
  ::kill(stopped.pid(), SIGTERM);
  EXPECT_EQ(stopped.wait(), 143);
  EXPECT_TRUE(nobody_is_left());
}

TEST_F(SweepOf, a_second_signal_kills_the_runs) {
  RunningProgram stopped(
      command({"--set", "x=3", "-n", "1"}, "trap '' TERM; touch $dir/waits; while :; do sleep 0.01; done"),
      {mark_});
  ASSERT_TRUE(eventually([&] { return has_file("run-1/waits"); }));
  ::kill(stopped.pid(), SIGTERM);
  stopped.wait_for_error("a second signal kills them");
  ::kill(stopped.pid(), SIGTERM);
  EXPECT_EQ(stopped.wait(), 143);
  EXPECT_TRUE(nobody_is_left());
}

// One worker of the job is killed, and so the run is restarted.
TEST_F(SweepOf, a_job_of_two_workers_that_loses_one_goes_on_from_its_checkpoint) {
  const Words flags = {
      "--steps", "100",    "--batch",   "2", "--threads", "1", "--lanes", "2", "--checkpoint-every",
      "5",       "--data", few_digits()};
  RunningProgram running(
      Words{program_path("tutti"), "sweep", "--logdir", top_, "--set", "learning-rate=1e-3", "-n", "1", "--",
            program_path("tutti"), "run", "-n", "2", "--", program_path("mnist")} +
          flags,
      {mark_}, Crashes::AskedFor);
  ASSERT_TRUE(eventually([&] { return has_file("run-1/latest"); }));
  for (const pid_t pid : processes_with("TUTTI_TASK_INDEX=1")) {
    const std::string variables = read_system_file("/proc/" + std::to_string(pid) + "/environ");
    if (variables.find(mark_) != std::string::npos) ::kill(pid, SIGKILL);
  }
  ASSERT_EQ(running.wait(), 0) << running.err();
  EXPECT_THAT(running.err(), HasSubstr("restart 1 of 3"));
  EXPECT_EQ(results().at("runs")[0].at("stops")[0].at("weights_sha256"),
            weights_of(folder_.path(), flags + Words{"--learning-rate", "1e-3"}));
  EXPECT_TRUE(nobody_is_left());
}

}  // namespace
}  // namespace tutti::testing::sweep_ends_test

// Tests `tutti sweep` with a script that behaves like a program of Tutti, and with the first example.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/tool.h"
#include "tutti/base/file.h"

namespace tutti::testing {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Reads the flags and calls `train`, which sets `loss` and `metrics` for $x; then writes the report. It has 8
// steps. $dir is the run's folder, $top the sweep's, and $step the step of its end.
constexpr const char* kProgram = R"(
for flag; do
  case $flag in
    --print-config) echo '{'; echo '  "steps": 8'; echo '}'; exit ;;
    --x=wrong) echo "x: 'wrong' is not a number" >&2; exit 2 ;;
    --x=*) x=${flag#*=} ;;
    --logdir=*) dir=${flag#*=} ;;
    --report=*) report=${flag#*=} ;;
    --stop-after=*) step=${flag#*=} ;;
  esac
done
top=$dir/..
complete=false
if [ "$step" = 0 ]; then step=8; complete=true; fi
loss=$x
metrics="{\"accuracy\": 0.$x}"
echo "$step" >> "$dir/starts"
train
echo "{\"steps\": $step, \"complete\": $complete, \"loss\": $loss, \"weights_sha256\": \"w$x\"," \
  "\"metrics\": $metrics}" > "$report"
)";

class SweepOf : public ::testing::Test {
 protected:
  // `train` is the script's function of that name.
  Words command(const Words& flags, const std::string& train = ":") const {
    return Words{program_path("tutti"), "sweep", "--logdir", top_} + flags +
           Words{"--", "sh", "-c", "train() {\n" + train + "\n}\n" + kProgram, "program"};
  }
  ProgramResult sweep(const Words& flags, const std::string& train = ":") const {
    return run_program(command(flags, train), {mark_}, Crashes::AskedFor);
  }
  json results() const { return json::parse(read_file(top_ + "/sweep.json")); }
  // The last step of each process of a run.
  std::string starts(int run) const {
    std::string text = read_file(fmt::format("{}/run-{}/starts", top_, run));
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text;
  }
  bool has_file(const std::string& name) const { return std::filesystem::exists(top_ + "/" + name); }
  bool nobody_is_left() const {
    return eventually([this] { return processes_with(mark_).empty(); });
  }

  TestFolder folder_;
  const std::string top_ = folder_ / "sweep";
  const std::string mark_ = "MARK_OF_THIS_TEST=" + folder_.path();
};

TEST_F(SweepOf, a_grid_runs_everything_and_links_the_best) {
  const ProgramResult result = sweep({"--set", "x=3,1,2", "--set", "y=5,6", "-n", "2"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(results().at("runs").size(), 6U);
  for (const json& run : results().at("runs")) EXPECT_EQ(run.at("state"), "finished") << run;
  EXPECT_THAT(result.out, HasSubstr("run-3  1  5      8     1"));
  EXPECT_LT(result.out.find("run-3"), result.out.find("run-5"));
  EXPECT_LT(result.out.find("run-5"), result.out.find("run-1"));
  EXPECT_EQ(std::filesystem::read_symlink(top_ + "/best"), "run-3");
  EXPECT_THAT(read_file(top_ + "/sweep.csv"),
              AllOf(HasSubstr("run,x,y,state,steps"), HasSubstr("run-6,2,6,finished,8")));
  EXPECT_FALSE(has_file("check.log"));
}

TEST_F(SweepOf, another_metric_may_decide) {
  const ProgramResult result = sweep({"--set", "x=3,1,7,2", "--by", "accuracy:max"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(std::filesystem::read_symlink(top_ + "/best"), "run-3");
}

TEST_F(SweepOf, an_unknown_metric_is_an_error_that_lists_those_of_the_report) {
  const ProgramResult result = sweep({"--set", "x=3,1", "--by", "acuracy:max"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("has no 'acuracy', only accuracy, loss"), HasSubstr("did you mean")));
  EXPECT_EQ(sweep({"--set", "x=3,1", "--by", "accuracy:max"}).exit_code, 0);
}

TEST_F(SweepOf, a_loss_that_is_not_a_number_is_the_worst) {
  const ProgramResult result = sweep({"--set", "x=3,1,2"}, "if [ $x = 1 ]; then loss=null; fi");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(std::filesystem::read_symlink(top_ + "/best"), "run-3");
  EXPECT_EQ(results().at("runs")[1].at("state"), "finished");
}

TEST_F(SweepOf, a_metric_without_a_value_in_one_run_is_its_worst) {
  const ProgramResult result = sweep({"--set", "x=3,1,7,2", "-n", "1", "--by", "accuracy:max"},
                                     "if [ $x = 7 ]; then metrics='{}'; fi");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(std::filesystem::read_symlink(top_ + "/best"), "run-1");
  for (const json& run : results().at("runs")) EXPECT_EQ(run.at("state"), "finished") << run;
}

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

TEST_F(SweepOf, wrong_values_are_found_before_the_first_run) {
  const ProgramResult result = sweep({"--set", "x=3,wrong", "--set", "y=1,2"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("run-3"), HasSubstr("x: 'wrong' is not a number")));
  EXPECT_FALSE(has_file("run-1"));
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

TEST_F(SweepOf, halving_continues_the_better_half_of_the_runs) {
  const ProgramResult result = sweep({"--set", "x=4,1,3,2", "--halving"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(starts(1), "2 ");
  EXPECT_EQ(starts(2), "2 4 8 ");
  EXPECT_EQ(starts(3), "2 ");
  EXPECT_EQ(starts(4), "2 4 ");
  EXPECT_EQ(results().at("runs")[3].at("state"), "stopped");
  // Without --halving the others are completed too.
  ASSERT_EQ(sweep({"--set", "x=4,1,3,2"}).exit_code, 0);
  EXPECT_EQ(starts(1), "2 8 ");
  EXPECT_EQ(starts(2), "2 4 8 ");
  EXPECT_EQ(starts(4), "2 4 8 ");
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

TEST_F(SweepOf, a_folder_has_one_sweep_and_one_process) {
  ASSERT_EQ(sweep({"--set", "x=3,1"}).exit_code, 0);
  for (const Words& other : {Words{"--set", "x=3,1,2"}, Words{"--set", "y=3,1"}}) {
    const ProgramResult result = sweep(other);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr("this folder has a sweep of other settings"));
  }
  EXPECT_THAT(sweep({"--set", "x=3,1"}, "true").err, HasSubstr("another command"));
  const std::string wait = "touch $top/waits; while ! [ -e $top/go ]; do sleep 0.01; done";
  std::filesystem::remove_all(top_);
  RunningProgram first(command({"--set", "x=3"}, wait), {mark_});
  ASSERT_TRUE(eventually([&] { return has_file("waits"); }));
  EXPECT_THAT(sweep({"--set", "x=3"}, wait).err, HasSubstr("another tutti sweep works in this folder"));
  replace_file(top_ + "/go", "");
  EXPECT_EQ(first.wait(), 0);
}

TEST_F(SweepOf, bad_arguments_are_errors_that_say_what_to_do) {
  const auto refused = [&](const Words& arguments) {
    const ProgramResult result = run_program(Words{program_path("tutti"), "sweep"} + arguments);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    return result.err;
  };
  EXPECT_THAT(refused({}), HasSubstr("--logdir"));
  EXPECT_THAT(refused({"--logdir", top_, "--", "true"}), HasSubstr("--set"));
  EXPECT_THAT(refused({"--logdir", top_, "--set", "x=1"}), HasSubstr("after --"));
  EXPECT_THAT(refused({"--logdir", top_, "--set", "x=1", "--"}), HasSubstr("after --"));
  EXPECT_THAT(refused({"--logdir", top_, "--set", "x=1", "--halvign", "--", "true"}),
              HasSubstr("did you mean '--halving'"));
  EXPECT_THAT(refused({"--logdir", top_, "--set", "x=1", "--min-steps", "3", "--", "true"}),
              HasSubstr("--halving"));
  EXPECT_THAT(refused({"--logdir", top_, "--set", "x=1", "--seed", "3", "--", "true"}),
              HasSubstr("--random"));
  EXPECT_THAT(refused({"--logdir", top_, "--set", "x=1", "-n", "0", "--", "true"}), HasSubstr("--slots"));
  EXPECT_THAT(refused({"--logdir", top_, "--set", "x=1..2", "--", "true"}), HasSubstr("--random"));
  EXPECT_THAT(refused({"--logdir", top_, "--set", "logdir=1", "--", "true"}),
              HasSubstr("the sweep sets this flag"));
  EXPECT_FALSE(std::filesystem::exists(top_)) << "nothing was begun";
  EXPECT_THAT(refused({"--logdir", top_, "--set", "x=1", "--", "/no/such/program"}),
              HasSubstr("no such program"));
  EXPECT_THAT(refused({"--logdir", top_, "--set", "x=1", "--", "true"}), HasSubstr("--print-config"));
}

// The weights of the example after all its steps, in one process.
std::string weights_of(const std::string& folder, const Words& flags) {
  const std::string report = folder + "/straight.json";
  const ProgramResult result = run_program(Words{program_path("mnist"), "--report", report} + flags);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return json::parse(read_file(report)).at("weights_sha256").get<std::string>();
}

TEST_F(SweepOf, the_example_has_the_weights_of_an_uninterrupted_run_after_halving) {
  const Words flags = {"--steps", "16", "--batch", "4", "--threads", "1", "--decay-steps", "16"};
  const Words command =
      Words{program_path("tutti"), "sweep", "--logdir",     top_, "--set", "rate=1e-3,1e-6,1e-9",
            "--halving",           "--by",  "accuracy:max", "-n", "2",     "--",
            program_path("mnist")} +
      flags;
  const ProgramResult result = run_program(command, {mark_});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json runs = results().at("runs");
  const std::string best = std::filesystem::read_symlink(top_ + "/best");
  const json found =
      *std::find_if(runs.begin(), runs.end(), [&](const json& run) { return run.at("name") == best; });
  EXPECT_EQ(found.at("state"), "finished");
  ASSERT_EQ(found.at("stops").size(), 3U) << "it was stopped twice: " << found;
  EXPECT_EQ(found.at("stops")[0].at("steps"), 4);
  EXPECT_EQ(found.at("stops")[1].at("steps"), 8);
  EXPECT_EQ(found.at("stops")[2].at("steps"), 16);
  EXPECT_EQ(
      found.at("stops")[2].at("weights_sha256"),
      weights_of(folder_.path(), flags + Words{"--rate", found.at("set").at("rate").get<std::string>()}));
}

// One worker of the job is killed, and so the run is restarted.
TEST_F(SweepOf, a_job_of_two_workers_that_loses_one_goes_on_from_its_checkpoint) {
  const Words flags = {
      "--steps", "100", "--batch", "2", "--threads", "1", "--lanes", "2", "--checkpoint-every", "5"};
  RunningProgram running(
      Words{program_path("tutti"), "sweep", "--logdir", top_, "--set", "rate=1e-3", "-n", "1", "--",
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
            weights_of(folder_.path(), flags + Words{"--rate", "1e-3"}));
  EXPECT_TRUE(nobody_is_left());
}

}  // namespace
}  // namespace tutti::testing

// Tests the choices of `tutti sweep` with a script that behaves like a program of Tutti, and with the first
// example.
#include "tests/sweep.h"

#include <algorithm>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace tutti::testing::sweep_test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

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
  EXPECT_THAT(result.err, HasSubstr(top_ + "/plot.svg shows the curves of 6 runs"));
  const std::string plot = read_file(top_ + "/plot.svg");
  EXPECT_LT(plot.find(">run-3<"), plot.find(">run-5<")) << "the best comes first";
  EXPECT_LT(plot.find(">run-5<"), plot.find(">run-1<"));
}

TEST_F(SweepOf, a_run_without_numbers_or_with_a_damaged_event_file_is_not_in_the_plot) {
  const ProgramResult result =
      sweep({"--set", "x=1,2,3", "-n", "1"},
            "if [ $x = 2 ]; then echo damaged, this is > $dir/events.out.tfevents.1; fi\n"
            "if [ $x = 3 ]; then exit 4; fi");
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("run-2 is not in the plot: "), HasSubstr("shows the curves of 1 run\n")));
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
  // Now the names are known before anything is started.
  const std::string before = read_file(top_ + "/sweep.json");
  const ProgramResult known = sweep({"--set", "x=3,1", "--by", "acuracy:max"});
  EXPECT_EQ(known.exit_code, 2);
  EXPECT_THAT(known.err, HasSubstr("the report of run-1 has no 'acuracy', only accuracy, loss"));
  EXPECT_EQ(read_file(top_ + "/sweep.json"), before);
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

TEST_F(SweepOf, flags_that_contradict_each_other_are_found_before_anything_runs) {
  const auto refused = [&](const Words& flags, const Words& more) {
    const ProgramResult result = run_program(command(flags) + more, {mark_});
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_FALSE(std::filesystem::exists(top_));
    return result.err;
  };
  EXPECT_THAT(refused({"--set", "x=3,1"}, {"--x=2"}), HasSubstr("have --x=2, but --set x"));
  EXPECT_THAT(refused({"--set", "x=3,1"}, {"--report", "r"}), HasSubstr("leave --report out"));
  EXPECT_THAT(refused({"--set", "x=3,1", "--set", "steps=100,200", "--halving"}, {}),
              HasSubstr("the same number of steps"));
  EXPECT_THAT(refused({"--set", "steps=100..200", "--random", "3", "--halving"}, {}),
              HasSubstr("the same number of steps"));
}

// The number of steps may depend on another flag.
TEST_F(SweepOf, runs_whose_steps_depend_on_a_drawn_value_are_not_halved) {
  const Words halving = {program_path("tutti"),
                         "sweep",
                         "--logdir",
                         top_,
                         "--set",
                         "x=1..9",
                         "--random",
                         "4",
                         "--halving",
                         "--",
                         "sh",
                         "-c",
                         "echo '{'; echo \"  \\\"steps\\\": ${1#*=}0\"; echo '}'",
                         "program"};
  const ProgramResult result = run_program(halving, {mark_});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err,
              HasSubstr("--halving compares runs after the same number of steps, but run-1 makes"));
  EXPECT_FALSE(has_file("run-1"));
}

TEST_F(SweepOf, halving_with_a_least_number_of_steps_completes_several_runs) {
  const ProgramResult result = sweep({"--set", "x=4,1,3,2", "--halving", "--min-steps", "4"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("4 runs until step 4"), HasSubstr("2 runs to the end")));
  EXPECT_EQ(starts(1), "4 ");
  EXPECT_EQ(starts(2), "4 8 ");
  EXPECT_EQ(starts(3), "4 ");
  EXPECT_EQ(starts(4), "4 8 ");
}

TEST_F(SweepOf, wrong_values_are_found_before_the_first_run) {
  const ProgramResult result = sweep({"--set", "x=3,wrong", "--set", "y=1,2"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("run-3"), HasSubstr("x: 'wrong' is not a number")));
  EXPECT_FALSE(has_file("run-1"));
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

TEST_F(SweepOf, as_many_slots_as_there_are_runs_share_the_cores) {
  ASSERT_EQ(sweep({"--set", "x=3", "-n", "64"}, "nproc > $dir/cores").exit_code, 0);
  EXPECT_EQ(read_file(top_ + "/run-1/cores"), run_program({"nproc"}).out);
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

TEST_F(SweepOf, values_that_are_not_text_are_passed_on_as_they_are) {
  const std::string latin = "caf\xe9";
  const Words flags = {"--set", "x=1", "--set", "name=" + latin};
  for (int attempt = 0; attempt < 2; ++attempt) {
    ASSERT_EQ(sweep(flags, "echo \"$words\" > $dir/words; exit 3").exit_code, 3);
    EXPECT_THAT(read_file(top_ + "/run-1/words"), HasSubstr("--name=" + latin + " "));
    std::filesystem::remove(top_ + "/run-1/words");
  }
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

TEST_F(SweepOf, the_example_has_the_weights_of_an_uninterrupted_run_after_halving) {
  const Words flags = {"--steps", "16",         "--batch",       "4", "--threads", "1",
                       "--data",  few_digits(), "--decay-steps", "16"};
  const Words command =
      Words{program_path("tutti"), "sweep", "--logdir",     top_, "--set", "learning-rate=1e-3,1e-6,1e-9",
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
  EXPECT_THAT(read_file(top_ + "/plot.svg"),
              AllOf(HasSubstr(">run-1<"), HasSubstr(">run-2<"), HasSubstr(">run-3<")));
  ASSERT_EQ(found.at("stops").size(), 3U) << "it was stopped twice: " << found;
  EXPECT_EQ(found.at("stops")[0].at("steps"), 4);
  EXPECT_EQ(found.at("stops")[1].at("steps"), 8);
  EXPECT_EQ(found.at("stops")[2].at("steps"), 16);
  EXPECT_EQ(
      found.at("stops")[2].at("weights_sha256"),
      weights_of(folder_.path(),
                 flags + Words{"--learning-rate", found.at("set").at("learning-rate").get<std::string>()}));
}

}  // namespace
}  // namespace tutti::testing::sweep_test

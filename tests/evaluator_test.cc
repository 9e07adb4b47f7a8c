// Tests the evaluator, the task beside a training that evaluates its checkpoints, with processes.
#include <filesystem>
#include <signal.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/evaluations.h"
#include "tutti/base/error.h"

namespace tutti::testing::evaluator_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// The training is evaluated at the steps of its checkpoints.
const Flags kFlags = {"--steps", "12", "--checkpoint-every", "4", "--keep", "0"};
const Flags kInTraining = {"--every", "4"};

nlohmann::json evaluations_in(const std::string& logdir) {
  return json_of(logdir + "/evaluator/evaluations.json").at("evaluations");
}

std::vector<int64_t> recorded_in(const std::string& logdir) {
  std::vector<int64_t> steps;
  const nlohmann::json evaluations = evaluations_in(logdir);
  for (const auto& each : evaluations) steps.push_back(each.at("step").get<int64_t>());
  return steps;
}

bool has_event_file(const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with("events.out.")) return true;
  }
  return false;
}

// Returns how many times the evaluator has logged the text, without what the launcher repeats of that.
int64_t count_of(const std::string& text, const std::string& output) {
  int64_t count = 0;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("[evaluator/0]") && line.find(text) != std::string::npos) ++count;
  }
  return count;
}

// Returns the lines of the first task that prints the text: several workers print their rows.
std::string lines_of_one_task(const std::string& output, const std::string& text) {
  const size_t at = output.find(text);
  if (at == std::string::npos) return "";
  const size_t begin = output.rfind('\n', at) + 1;
  const std::string task = output.substr(begin, output.find(']', begin) - begin + 1);
  std::string found;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(task)) found += line + "\n";
  }
  return found;
}

const std::vector<int64_t> kSteps = {4, 8, 12};

TEST(EvaluatorTask, has_the_values_of_the_training_in_every_way) {
  const std::vector<std::pair<Flags, Flags>> ways = {
      {{"-n", "1"}, {}},
      {{"-n", "2"}, {"--average", "0.9"}},
      {{"-n", "3"}, {"--form", "function"}},
      {{"-n", "2"}, {"--own-loop"}},
      {{"-n", "2"}, {"--net", "tables"}},
      {{"-n", "2"}, {"--net", "tables", "--comm", "tcp"}},
      {{"-n", "3"}, {"--net", "tables", "--checkpoint-rows", "changed"}},
      {{"-n", "2"}, {"--net", "tables", "--dynamic"}},
      {{"--ps", "2", "-n", "2"}, {"--net", "tables", "--strategy", "ps-sync"}},
      {{"-n", "2"}, {"--strategy", "in-graph"}},
      {{"--ps", "2", "-n", "2"}, {"--strategy", "ps-sync"}},
  };
  for (const auto& [launcher, flags] : ways) {
    const TestFolder folder;
    const Flags command = with(with(kFlags, kInTraining), with(flags, {"--logdir", folder / "run"}));
    const std::string output = output_under(with(launcher, {"--evaluator"}), command);
    const std::string what = launcher.back() + (flags.empty() ? "" : flags.back());
    const auto rows = rows_in(output, "evaluated");
    // A server's run also has a checkpoint of its beginning.
    std::vector<EvaluatedRow> after_start = rows;
    std::erase_if(after_start, [](const EvaluatedRow& row) { return row.step == 0; });
    EXPECT_EQ(steps_of(after_start), kSteps) << what;
    EXPECT_EQ(after_start, rows_in(lines_of_one_task(output, "rows step "))) << what;
    EXPECT_EQ(recorded_in(folder / "run"), steps_of(rows)) << what;
    EXPECT_TRUE(has_event_file(folder / "run/evaluator"));
  }
}

TEST(EvaluatorTask, evaluates_for_a_training_that_does_not) {
  const TestFolder folder;
  const std::string output =
      output_under({"--ps", "1", "-n", "2", "--evaluator"}, with(kFlags, {"--logdir", folder / "run"}));
  EXPECT_TRUE(rows_in(output).empty());
  EXPECT_EQ(recorded_in(folder / "run").back(), 12);
}

TEST(EvaluatorTask, follows_each_fit_and_evaluates_at_the_end_as_all_tasks_do) {
  const TestFolder folder;
  const std::string output = output_under(
      {"-n", "2", "--evaluator"}, with(kFlags, {"--logdir", folder / "run", "--fits", "2", "--here", "all"}));
  EXPECT_THAT(output, HasSubstr("[evaluator/0] fit 0 has 3 rows"));
  EXPECT_THAT(output, HasSubstr("[evaluator/0] fit 1 has 3 rows"));
  EXPECT_EQ(recorded_in(folder / "run"), (std::vector<int64_t>{4, 8, 12, 16, 20, 24}));
}

// It is killed after it has evaluated a checkpoint, and before it has recorded that.
TEST(EvaluatorTask, that_is_killed_goes_on_without_evaluating_a_checkpoint_twice) {
  const TestFolder folder;
  const ProgramResult result =
      run_program(evaluated_training({"-n", "2", "--evaluator", "--restarts", "1"},
                                     with(kFlags, {"--logdir", folder / "run", "--kill-evaluator-at", "8"})));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("restarting evaluator/0: restart 1 of 1"));
  EXPECT_EQ(recorded_in(folder / "run"), kSteps);
  EXPECT_EQ(count_of("test after step 4:", result.err), 1) << result.err;
  EXPECT_EQ(count_of("test after step 8:", result.err), 2) << result.err;
  EXPECT_EQ(count_of("test after step 12:", result.err), 1) << result.err;
  EXPECT_EQ(rows_in(result.out, "evaluated").size(), 3U) << "with those from before";
}

TEST(EvaluatorTask, that_fails_is_reported_and_does_not_end_the_job) {
  const TestFolder folder;
  const std::string report = folder / "report.json";
  const ProgramResult result = run_program(evaluated_training(
      {"-n", "2", "--evaluator"},
      with(kFlags, {"--logdir", folder / "run", "--report", report, "--fail-evaluator-at", "4"})));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("evaluator/0 (pid "));
  EXPECT_THAT(result.err, HasSubstr("the evaluator is on fire"));
  EXPECT_THAT(result.err, HasSubstr("evaluator/0 is lost, and the job goes on without it"));
  EXPECT_EQ(json_of(report).at("steps"), 12);
}

TEST(EvaluatorTask, without_a_log_directory_says_that_it_needs_one) {
  const ProgramResult result = run_program(evaluated_training({"-n", "1", "--evaluator"}, {"--steps", "3"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("evaluator/0 needs --logdir"));
}

TEST(EvaluatorTask, ends_with_a_job_that_fails) {
  const TestFolder folder;
  const ProgramResult result = run_program(
      evaluated_training({"-n", "2", "--evaluator"},
                         with(kFlags, {"--logdir", folder / "run", "--kill-at", "6", "--timeout", "5"})));
  EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.err;
  EXPECT_THAT(result.err, Not(HasSubstr("evaluator/0 is lost")));
  // Started again, the training is resumed and the evaluator goes on.
  output_under({"-n", "2", "--evaluator"}, with(kFlags, {"--logdir", folder / "run", "--kill-at", "6"}));
  EXPECT_EQ(recorded_in(folder / "run"), kSteps);
}

TEST(EvaluatorTask, ends_with_the_others_after_a_signal) {
  const TestFolder folder;
  RunningProgram job(
      evaluated_training({"-n", "2", "--evaluator"},
                         {"--steps", "1000000", "--checkpoint-every", "4", "--logdir", folder / "run"}));
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(folder / "run/evaluator/evaluations.json"); }));
  ::kill(job.pid(), SIGTERM);
  EXPECT_EQ(job.wait(), 128 + SIGTERM) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("evaluator/0 stopped by SIGTERM"));
  EXPECT_FALSE(evaluations_in(folder / "run").empty());
}

TEST(EvaluatorTask, of_a_longer_run_goes_on_where_it_was) {
  const TestFolder folder;
  const Flags flags = with(kFlags, {"--logdir", folder / "run"});
  output_under({"-n", "2", "--evaluator"}, flags);
  const ProgramResult longer =
      run_program(evaluated_training({"-n", "1", "--evaluator"}, with(flags, {"--steps", "18"})));
  EXPECT_EQ(longer.exit_code, 0) << longer.err;
  EXPECT_EQ(recorded_in(folder / "run"), (std::vector<int64_t>{4, 8, 12, 16, 18}));
  EXPECT_EQ(count_of("test after step", longer.err), 2) << longer.err;
  // A new run in the same folder.
  output_under({"-n", "1", "--evaluator"}, with(flags, {"--steps", "6", "--resume", "never"}));
  EXPECT_EQ(recorded_in(folder / "run"), (std::vector<int64_t>{4, 6}));
}

TEST(EvaluatorTask, evaluates_while_the_training_waits) {
  const TestFolder folder;
  RunningProgram job(evaluated_training(
      {"-n", "2", "--evaluator"},
      with(kFlags, {"--logdir", folder / "run", "--wait-at", "6", "--wait-for", folder / "go"})));
  // The chief waits until this has happened.
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(folder / "run/evaluator/evaluations.json"); }));
  EXPECT_FALSE(std::filesystem::exists(folder / "run/ckpt-8"));
  EXPECT_EQ(recorded_in(folder / "run"), std::vector<int64_t>{4});
  folder.write("go", "");
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(recorded_in(folder / "run"), kSteps);
}

// --- Started by hand

class EvaluatorByHand : public ::testing::Test {
 protected:
  Flags program(const Flags& flags) const {
    return with({evaluation_program(), "--logdir", folder_ / "run"}, with(kFlags, flags));
  }
  std::unique_ptr<RunningProgram> evaluator(const Flags& flags = {}) const {
    return std::make_unique<RunningProgram>(
        program(flags), Flags{R"(TF_CONFIG={"task": {"type": "evaluator", "index": 0}})"});
  }
  // A training that is killed once, after its first checkpoint.
  Flags killed_program() const {
    return program({"--kill-at", "6", "--wait-at", "6", "--wait-for", folder_ / "run/ckpt-4"});
  }
  const TestFolder folder_;
};

// The evaluator comes first, and the training runs in one process that knows nothing of it.
TEST_F(EvaluatorByHand, it_waits_for_the_training_and_ends_with_it) {
  const auto task = evaluator();
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(folder_ / "run/evaluator/lock"); }));
  const ProgramResult training = run_program(program(kInTraining));
  EXPECT_EQ(training.exit_code, 0) << training.err;
  EXPECT_EQ(task->wait(), 0) << task->err();
  EXPECT_EQ(rows_in(task->out(), "evaluated"), rows_in(training.out));
}

TEST_F(EvaluatorByHand, it_ends_with_an_error_if_the_training_does_not_come_back) {
  const auto task = evaluator({"--start-timeout", "15"});
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(folder_ / "run/evaluator/lock"); }));
  EXPECT_EQ(run_program(killed_program()).exit_code, 128 + SIGKILL);
  EXPECT_EQ(task->wait(), exit_code(ErrorKind::Timeout)) << task->err();
  EXPECT_THAT(task->err(), HasSubstr("nobody has trained in"));
  EXPECT_EQ(recorded_in(folder_ / "run"), std::vector<int64_t>{4});
  // With both started again, the evaluator goes on with what is new.
  const auto again = evaluator();
  EXPECT_EQ(run_program(killed_program()).exit_code, 0);
  EXPECT_EQ(again->wait(), 0) << again->err();
  EXPECT_EQ(recorded_in(folder_ / "run"), kSteps);
}

TEST_F(EvaluatorByHand, it_goes_on_waiting_while_the_training_is_started_again) {
  const auto task = evaluator();
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(folder_ / "run/evaluator/lock"); }));
  EXPECT_EQ(run_program(killed_program()).exit_code, 128 + SIGKILL);
  EXPECT_EQ(run_program(killed_program()).exit_code, 0);
  EXPECT_EQ(task->wait(), 0) << task->err();
  EXPECT_EQ(recorded_in(folder_ / "run"), kSteps);
}

TEST_F(EvaluatorByHand, a_second_one_is_told_that_the_first_has_the_folder) {
  const auto first = evaluator();
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(folder_ / "run/evaluator/lock"); }));
  const auto second = evaluator();
  EXPECT_EQ(second->wait(), exit_code(ErrorKind::InvalidArgument)) << second->err();
  EXPECT_THAT(second->err(), HasSubstr("in use by evaluator/0"));
}

}  // namespace
}  // namespace tutti::testing::evaluator_test

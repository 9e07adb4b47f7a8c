// Tests validation, early stopping and moving averages in all ways of training, with processes.
#include <filesystem>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/served.h"

namespace tutti::testing::validation_test {
namespace {

using ::testing::HasSubstr;

const Flags kFlags = {"--net",   "normed", "--lanes",          "4", "--batch",   "5",
                      "--steps", "200",    "--validate-every", "5", "--average", "0.9"};

struct Result {
  int64_t steps = 0;
  std::string hash;
  std::string history;
  bool operator==(const Result&) const = default;
};

Result result_in(const ProgramResult& result, const std::string& report) {
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  if (result.exit_code != 0) return {};
  // The launcher puts the task before each line.
  std::string history;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    const size_t begin = line.find("step ");
    if (begin != std::string::npos) history += line.substr(begin) + "\n";
  }
  const nlohmann::json json = json_of(report);
  return {json.at("steps").get<int64_t>(), json.at("weights_sha256").get<std::string>(), history};
}

Result result_of(Job job) {
  const TestFolder folder;
  const std::string report = folder / "report.json";
  job.program = with(job.program, {"--report", report});
  return result_in(run_job(job), report);
}

Result result_under(const Flags& launcher, const Flags& flags) {
  const TestFolder folder;
  const std::string report = folder / "report.json";
  const Flags command = with({program_path("tutti"), "run"}, with(launcher, {"--", together_program()}));
  return result_in(run_program(with(with(command, {"--threads", "1", "--report", report}), flags)), report);
}

TEST(Validation, ends_the_training_at_the_same_step_in_every_way_of_training) {
  const Result alone = result_of(on_workers(1, kFlags));
  EXPECT_LT(alone.steps, 200);
  EXPECT_THAT(alone.history, HasSubstr("accuracy"));
  for (const int workers : {2, 3}) EXPECT_EQ(result_of(on_workers(workers, kFlags)), alone) << workers;
  EXPECT_EQ(result_of(with_master(3, kFlags)), alone);
  EXPECT_EQ(result_of(on_servers(2, 2, with(kFlags, {"--strategy", "ps-sync"}))), alone);
}

TEST(Validation, is_continued_by_a_resumed_run) {
  const Result alone = result_of(on_workers(1, kFlags));
  for (const std::string strategy : {"allreduce", "ps-sync", "in-graph"}) {
    const TestFolder folder;
    const Flags saving = with(kFlags, {"--strategy", strategy, "--logdir", folder / "run"});
    Flags launcher = {"-n", strategy == "in-graph" ? "3" : "2"};
    if (strategy == "ps-sync") launcher = with({"--ps", "2"}, launcher);
    Flags command = with({program_path("tutti"), "run"}, with(launcher, {"--", together_program()}));
    command = with(command, with(saving, {"--checkpoint-every", "4", "--kill-at", "9", "--timeout", "5"}));
    EXPECT_NE(run_program(command).exit_code, 0) << strategy;
    EXPECT_TRUE(std::filesystem::exists(folder / "run/latest")) << strategy;
    EXPECT_EQ(result_under(launcher, saving), alone) << strategy;
  }
}

// The servers and the other worker live on, and are ahead of the newest checkpoint, from which the chief
// takes the moving average, the history and the patience.
TEST(Validation, is_the_same_after_a_chief_was_lost_beside_living_servers) {
  const Result alone = result_of(on_workers(1, kFlags));
  for (const char* every : {"4", "8", "0"}) {
    const TestFolder folder;
    const Flags flags = with(kFlags, {"--strategy", "ps-sync", "--logdir", folder / "run",
                                      "--checkpoint-every", every, "--kill-at", "10"});
    EXPECT_EQ(result_under({"--ps", "2", "-n", "2", "--restarts", "1"}, flags), alone) << every;
  }
}

// With a checkpoint after every step, the last one is written before the fit ends.
TEST(Validation, of_the_last_step_is_in_its_checkpoint) {
  const Result alone = result_of(on_workers(1, kFlags));
  const TestFolder folder;
  const Flags saving = with(kFlags, {"--logdir", folder / "run", "--checkpoint-every", "1"});
  EXPECT_EQ(result_of(on_workers(1, saving)), alone);
  EXPECT_EQ(result_of(on_workers(1, saving)), alone) << "run again when it was complete";
}

TEST(Validation, of_asynchronous_steps_is_made_by_the_chief) {
  const Result result =
      result_of(on_servers(2, 2, with(kFlags, {"--strategy", "ps-async", "--steps", "30"})));
  EXPECT_THAT(result.history, HasSubstr("accuracy"));
  EXPECT_THAT(result.history, ::testing::Not(HasSubstr("null"))) << "a buffer or the loss is not finite";
}

// A hook measures on all workers while the chief dies and is started again.
TEST(Validation, a_hook_that_measures_does_not_wait_for_a_chief_that_was_lost) {
  const Flags flags = {"--net",   "normed", "--lanes",         "4", "--batch",   "5",
                       "--steps", "20",     "--measure-every", "4", "--evaluate"};
  const auto result = [&](const Flags& launcher, const Flags& more) {
    const TestFolder folder;
    Flags command = with({program_path("tutti"), "run"}, with(launcher, {"--", together_program()}));
    command = with(command, with({"--threads", "1", "--logdir", folder / "run"}, with(flags, more)));
    const nlohmann::json report = report_of(command, folder);
    return std::pair(report.value("weights_sha256", ""), report.value("metrics", nlohmann::json()));
  };
  const auto alone = result({"-n", "1"}, {});
  EXPECT_FALSE(alone.first.empty());
  for (const char* at : {"4", "7", "12"}) {
    EXPECT_EQ(result({"--ps", "2", "-n", "2", "--restarts", "1"},
                     {"--strategy", "ps-sync", "--checkpoint-every", "3", "--kill-at", at}),
              alone)
        << at;
  }
  EXPECT_EQ(result({"--ps", "2", "-n", "3"}, {"--strategy", "ps-sync"}), alone);
}

// The server and a worker are lost in the second fit, before its first checkpoint: all return to the end of
// the first one, which the chief has passed.
TEST(Validation, tasks_that_return_to_an_earlier_fit_do_not_wait_there_for_the_chief) {
  const Flags flags = {"--lanes", "4", "--batch", "5", "--steps", "10", "--fits-twice"};
  const Result alone = result_of(on_workers(1, flags));
  for (const std::string at : {"10", "13"}) {
    const TestFolder folder;
    const Flags more = {"--strategy", "ps-sync", "--logdir", folder / "run", "--kill-both-at", at};
    EXPECT_EQ(result_under({"--ps", "1", "-n", "2", "--restarts", "2"}, with(flags, more)), alone) << at;
  }
}

// The parts of the workers are merged without rounding.
TEST(Validation, an_evaluation_has_the_same_loss_in_every_way_of_training) {
  const TestFolder folder;
  const Flags flags = {"--net", "normed", "--lanes", "4", "--batch", "5", "--steps", "20", "--evaluate"};
  const auto metrics_of = [&](const Job& job) {
    return report_of(job, folder).value("metrics", nlohmann::json());
  };
  const nlohmann::json alone = metrics_of(on_workers(1, flags));
  EXPECT_GT(alone.at("loss").get<double>(), 0);
  for (const int workers : {2, 3}) EXPECT_EQ(metrics_of(on_workers(workers, flags)), alone) << workers;
  EXPECT_EQ(metrics_of(with_master(3, flags)), alone);
  EXPECT_EQ(metrics_of(on_servers(2, 2, with(flags, {"--strategy", "ps-sync"}))), alone);
}

}  // namespace
}  // namespace tutti::testing::validation_test

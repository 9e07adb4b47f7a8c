// Tests that workers go on without those that are lost outside of the steps: while trainers are made, in
// evaluations and exports, and at the beginning of a fit (`tutti run --min`).
#include <algorithm>
#include <filesystem>
#include <regex>
#include <set>
#include <string>

#include <gmock/gmock.h>

#include "tests/survival.h"

namespace tutti::testing::survival_calls_test {
namespace {

using ::testing::HasSubstr;

const Flags kRun = {"--net", "normed", "--lanes", "8", "--batch", "2", "--steps", "12"};

// Returns the values of the evaluations that the workers have printed, each once.
std::set<std::string> evaluations_in(const std::string& out) {
  const std::regex line("(first|between|inside|after|again): [0-9.e+-]+ [0-9.e+-]+");
  return {std::sregex_token_iterator(out.begin(), out.end(), line), std::sregex_token_iterator()};
}

struct Way {
  std::string name;
  Flags flags;
  int servers = 0;
};

class SurvivalOfCalls : public ::testing::TestWithParam<Way> {
 protected:
  // Trains alone, without a launcher, and notes the result.
  void expect_as_alone(const Flags& more) {
    flags_ = with(with(kRun, GetParam().flags), more);
    Job job = on_workers(1, with(flags_, {"--report", folder_ / "alone.json"}));
    const ProgramResult result = run_job(job);
    ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
    alone_ = json_of(folder_ / "alone.json");
    evaluations_ = evaluations_in(result.out);
  }
  Outcome disturbed(int workers, const std::string& misfortune, const Flags& launch = {}) {
    SCOPED_TRACE(misfortune);
    const Flags strategy = GetParam().servers > 0 ? Flags{"--strategy", "ps-sync"} : Flags{};
    Outcome outcome = run_changing(folder_, workers,
                                   with({"--min", "1", "--ps", std::to_string(GetParam().servers)}, launch),
                                   with(flags_, with({"--misfortune", misfortune}, strategy)));
    if (outcome.report.empty()) return outcome;
    EXPECT_EQ(outcome.sha256(), alone_.at("weights_sha256"));
    for (const char* key : {"metrics", "history"})
      EXPECT_EQ(outcome.report.value(key, nlohmann::json()), alone_.value(key, nlohmann::json()));
    EXPECT_EQ(outcome.report.at("lost_steps"), 0);
    EXPECT_EQ(evaluations_in(outcome.result.out), evaluations_) << outcome.result.out;
    return outcome;
  }
  bool has_own_loop() const {
    const Flags& flags = GetParam().flags;
    return std::find(flags.begin(), flags.end(), "--own-loop") != flags.end();
  }

  const TestFolder folder_;
  Flags flags_;
  nlohmann::json alone_;
  std::set<std::string> evaluations_;
};

// Worker 0 is the chief. With four workers, each counts 12 batches or more.
TEST_P(SurvivalOfCalls, in_evaluations_outside_of_the_steps) {
  expect_as_alone({"--evaluate-outside"});
  EXPECT_EQ(evaluations_.size(), 3U) << "before the fit or in the loop, and twice after it";
  disturbed(4, "2@0/after");
  disturbed(4, "0@5/after,1@11/again");
  disturbed(3, "0@0/again,1@9/after");
  disturbed(2, "1@20/after");
  const std::string first = has_own_loop() ? "inside" : "first";
  disturbed(4, "3@11/" + first + ",0@2/after,1@0/again");
  disturbed(2, "0@3/" + first);
}

TEST_P(SurvivalOfCalls, in_an_evaluation_between_two_fits) {
  if (has_own_loop()) GTEST_SKIP() << "a loop is one fit";
  expect_as_alone({"--evaluate-outside", "--fits-twice"});
  disturbed(4, "0@4/between,1@15/before,2@0/after");
  disturbed(3, "1@12/end,2@8/between");
}

// It skips the evaluations that the others have made, with their values.
TEST_P(SurvivalOfCalls, with_a_worker_that_joins_after_an_evaluation) {
  if (has_own_loop()) GTEST_SKIP() << "a loop is one fit";
  expect_as_alone({"--evaluate-outside", "--fits-twice"});
  flags_ = with(flags_, {"--await-world", "3"});
  const Outcome outcome = disturbed(3, "1@15/before", {"--restarts", "1"});
  EXPECT_THAT(outcome.result.err, HasSubstr("has come back: 3 go on"));
  EXPECT_EQ(outcome.report.at("world"), 3);
}

// Worker 1 comes back while the others evaluate, and gets its place when worker 2 is killed there.
TEST_P(SurvivalOfCalls, with_a_worker_that_joins_in_an_evaluation) {
  expect_as_alone({"--evaluate-outside"});
  const Outcome outcome = disturbed(3, "1@10/before,2@3/after-joined", {"--restarts", "1"});
  EXPECT_THAT(outcome.result.err, HasSubstr("worker/1 has come"));
}

TEST_P(SurvivalOfCalls, while_trainers_are_made_and_the_run_begins) {
  expect_as_alone({});
  disturbed(4, "1@0/begins0,0@0/begins2000,2@0/begins8000");
  disturbed(3, "0@0/begins500,2@0/begins30000");
  for (int delay = 4000; delay <= 10000; delay += 1000)
    disturbed(2, "0@0/begins" + std::to_string(delay));  // also when only one has seen that the run has begun
  if (GetParam().servers > 0) return;                    // they cannot use the optimiser below
  expect_as_alone({"--optimizer", "replicated"});
  disturbed(4, "1@0/made");
  disturbed(3, "0@0/made,2@0/begins");
}

TEST_P(SurvivalOfCalls, in_a_validation_before_the_first_step) {
  if (has_own_loop()) GTEST_SKIP() << "the Trainer's";
  expect_as_alone({"--validate-every", "4", "--validate-at-start", "--average", "0.9"});
  disturbed(4, "2@1/start");
  disturbed(3, "0@0/start,1@0/validated");
  const Outcome outcome = disturbed(3, "1@0/begins,2@1/start-joined", {"--restarts", "1"});
  EXPECT_THAT(outcome.result.err, HasSubstr("worker/1 has come"));
}

TEST_P(SurvivalOfCalls, in_an_export) {
  if (has_own_loop()) GTEST_SKIP() << "the Trainer's";
  const std::string exported = folder_ / "exported";
  expect_as_alone({});
  flags_ = with(flags_, {"--export-into", exported});
  const Outcome outcome = disturbed(3, "0@0/exports20000");
  EXPECT_THAT(outcome.result.out, HasSubstr("rank 1 exported " + exported + "/"));
}

INSTANTIATE_TEST_SUITE_P(Ways, SurvivalOfCalls,
                         ::testing::Values(Way{"shm", {"--comm", "shm"}}, Way{"tcp", {"--comm", "tcp"}},
                                           Way{"own_loop", {"--own-loop"}}, Way{"servers", {}, 2},
                                           Way{"own_loop_servers", {"--own-loop", "--comm", "tcp"}, 1}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tutti::testing::survival_calls_test

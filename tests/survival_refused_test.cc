// Tests that a worker which does not fit is not taken in by those that train (`tutti run --min`), and ends
// alone: they end with the bits of a training that nothing has disturbed.
#include <filesystem>
#include <optional>
#include <signal.h>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "tests/survival.h"
#include "tutti/base/error.h"

namespace tutti::testing::survival_refused_test {
namespace {

using ::testing::ContainsRegex;

// Worker 2 of three is killed, and started again by `tutti scale` with another configuration file.
class SurvivalRefuses : public ::testing::Test {
 protected:
  static constexpr const char* kConfig = R"("batch": 2, "seed": 7, "lanes": 4, "steps": 40)";

  void configure(const std::string& values) { folder_.write("config", "{" + values + "}"); }
  Flags flags(const Flags& more) const {
    return Flags{"--net", "normed", "--config", folder_ / "config"} + more;
  }
  void start(const Flags& launch, const Flags& more) {
    configure(kConfig);
    held_ = folder_.write("held", "");
    const Flags run = {"--logdir", folder_ / "run", "--report", folder_ / "report", "--hold", held_};
    program_.emplace(changing_job(3, launch, flags(run + more)), Flags{mark_}, Crashes::AskedFor);
    program_->wait_for_output("under way");
  }
  void kill_worker(int worker) {
    const auto found =
        processes_with(Flags{mark_, fmt::format("TUTTI_TASK_INDEX={}", worker), "TUTTI_JOB_NAME=worker"});
    ASSERT_EQ(found.size(), 1U);
    kill(found[0], SIGKILL);
    program_->wait_for_error("with 2 workers: worker/2 is gone");
  }
  ProgramResult scale() { return run_program({program_path("tutti"), "scale", folder_ / "run", "3"}); }
  void expect_refused(const std::string& why) {
    const ProgramResult scaled = scale();
    EXPECT_EQ(scaled.exit_code, exit_code(ErrorKind::PeerLost)) << scaled.err;
    EXPECT_THAT(scaled.out, ContainsRegex("worker/2 has ended and was not taken in \\(.*" + why));
  }
  // It had a place among the others already.
  void expect_turned_away(const std::string& why) {
    scale();
    program_->wait_for_error("and was not taken in (");
    EXPECT_THAT(program_->err(), ContainsRegex(why));
  }
  // The right worker comes, and the training ends as one that was not disturbed.
  void expect_same_end(const Flags& more) {
    configure(kConfig);
    const ProgramResult scaled = scale();
    EXPECT_EQ(scaled.exit_code, 0) << scaled.out << scaled.err << program_->err();
    std::filesystem::remove(held_);
    EXPECT_EQ(program_->wait(), 0) << program_->out() << program_->err();
    const nlohmann::json report = json_of(folder_ / "report");
    EXPECT_EQ(report.at("lost_steps"), 0);
    EXPECT_EQ(report.at("weights_sha256"), hash_of(on_workers(1, flags(more)), folder_));
  }

  const TestFolder folder_;
  const std::string mark_ = "MARK_OF_THIS_TEST=" + folder_.path();
  std::string held_;
  std::optional<RunningProgram> program_;
};

TEST_F(SurvivalRefuses, workers_with_other_flags) {
  start({"--min", "1"}, {});
  kill_worker(2);
  for (const auto& [values, why] : std::vector<std::pair<std::string, std::string>>{
           {R"("batch": 3, "seed": 7, "lanes": 4, "steps": 40)", "has '--batch 2', .* has '--batch 3'"},
           {R"("batch": 2, "seed": 8, "lanes": 4, "steps": 40)", "has '--seed 7', .* has '--seed 8'"},
           {R"("batch": 2, "seed": 7, "lanes": 3, "steps": 40)", "has '--lanes 4', .* has '--lanes 3'"},
           {kConfig + std::string(R"(, "message_checksums": "off")"),
            "has '--message-checksums auto or on', .* has '--message-checksums off'"}}) {
    configure(values);
    expect_refused(why);
  }
  expect_same_end({});
  EXPECT_THAT(json_of(folder_ / "report").at("changes"), ::testing::SizeIs(2)) << "nobody noticed the others";
}

// Flags do not tell that this model, or its optimiser, is another one. The others see it when they compare
// their plans.
TEST_F(SurvivalRefuses, workers_with_another_plan) {
  start({"--min", "1"}, {});
  kill_worker(2);
  configure(std::string(kConfig) + R"(, "clip_norm_here": 0.5)");
  expect_turned_away("has 'clip_norm 0', worker/2 has 'clip_norm 0.5'");
  expect_same_end({});
}

// It finds that when it has joined the others, before it makes a step.
TEST_F(SurvivalRefuses, workers_with_other_data) {
  start({"--min", "1"}, {});
  kill_worker(2);
  configure(std::string(kConfig) + R"(, "other_labels": true)");
  expect_turned_away("worker/0 has 'data: column label.*, worker/2 has 'data: column label");
  expect_same_end({});
}

TEST_F(SurvivalRefuses, workers_with_another_plan_on_servers) {
  const Flags servers = {"--strategy", "ps-sync"};
  start({"--min", "1", "--ps", "1"}, servers);
  kill_worker(2);
  configure(std::string(kConfig) + R"(, "clip_norm_here": 0.5)");
  expect_turned_away("has 'clip_norm 0', worker/2 has 'clip_norm 0.5'");
  expect_same_end({});
}

}  // namespace
}  // namespace tutti::testing::survival_refused_test

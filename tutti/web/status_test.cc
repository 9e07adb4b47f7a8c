#include "tutti/web/status.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "tutti/web/page.h"

namespace tutti::web::status_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

// A moment this many seconds after the start.
Moment at(double seconds) {
  return {std::chrono::steady_clock::time_point() +
              std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                  std::chrono::duration<double>(seconds)),
          1e9 + seconds};
}

Status training_status() {
  Status status{.task = "worker/0", .host = "a", .device = "cpu", .timeout = 60, .started = at(0)};
  TrainingStatus& training = status.trainings[""];
  training.begin(10, at(1));
  training.end_step = 100;
  return status;
}

void make_step(TrainingStatus& training, int64_t step, double begin, double end, std::optional<double> loss) {
  training.begin_step(at(begin));
  training.end_step_at({.step = step, .examples = 32, .loss = loss, .learning_rate = 0.1}, at(end));
}

TEST(WebStatus, counts_steps_and_measures_speeds) {
  Status status = training_status();
  TrainingStatus& training = status.trainings[""];
  make_step(training, 11, 1, 1.5, 3.0);
  EXPECT_EQ(training.steps_per_second, 0);  // not measured long enough
  make_step(training, 12, 2, 3, {});
  EXPECT_EQ(training.step, 12);
  EXPECT_EQ(training.steps, 2);
  EXPECT_EQ(training.examples, 64);
  EXPECT_EQ(training.loss, 3.0);
  EXPECT_EQ(training.loss_step, 11);
  EXPECT_DOUBLE_EQ(training.steps_per_second, 1);
  EXPECT_DOUBLE_EQ(training.examples_per_second, 32);
  EXPECT_EQ(training.times.count, 2);
  EXPECT_DOUBLE_EQ(training.times.sum, 1.5);
}

TEST(WebStatus, is_unwell_if_a_step_takes_too_long_and_not_between_steps) {
  Status status = training_status();
  TrainingStatus& training = status.trainings[""];
  EXPECT_EQ(trouble_of(status, at(1000)), "");  // preparing
  training.begin_step(at(10));
  EXPECT_EQ(trouble_of(status, at(70)), "");
  EXPECT_THAT(trouble_of(status, at(71)), HasSubstr("step 10 has been taking 61 s"));
  training.end_step_at({.step = 11}, at(40));
  EXPECT_EQ(trouble_of(status, at(1000)), "");  // evaluating, say
  training.begin_step(at(1000));
  EXPECT_EQ(trouble_of(status, at(1000 + 5 * 30)), "");  // a step has taken 30 s before
  EXPECT_NE(trouble_of(status, at(1001 + 5 * 30)), "");
  training.phase = Phase::Complete;
  EXPECT_EQ(trouble_of(status, at(2000)), "");
  training.phase = Phase::Failed;
  training.why = "no memory";
  EXPECT_THAT(trouble_of(status, at(2000)), HasSubstr("no memory"));
}

TEST(WebStatus, keeps_a_curve_of_the_whole_run_that_stays_short) {
  LossCurve curve;
  for (int64_t step = 1; step <= 100'000; ++step) curve.add(step, static_cast<double>(step));
  EXPECT_LT(curve.points.size(), LossCurve::kMost);
  EXPECT_GT(curve.points.size(), LossCurve::kMost / 3);
  EXPECT_EQ(curve.points.front().first, 1);
  for (size_t i = 1; i < curve.points.size(); ++i)
    EXPECT_EQ(curve.points[i].first - curve.points[i - 1].first, curve.distance);
  curve.add(10, 7);  // the run was set back
  EXPECT_EQ(curve.points.back(), (std::pair<int64_t, double>(1, 1)));
}

TEST(WebStatus, has_metrics_in_the_format_of_prometheus) {
  Status status = training_status();
  TrainingStatus& training = status.trainings[""];
  make_step(training, 11, 1, 1.5, std::nan(""));
  make_step(training, 12, 2, 7, std::numeric_limits<double>::infinity());
  training.values["a \"b\" \\ \n c"] = 0.5;
  training.workers_lost = 2;
  const std::string text = metrics_text(status, at(8));
  EXPECT_THAT(text, AllOf(HasSubstr("# HELP tutti_step Steps of the run that are done.\n"
                                    "# TYPE tutti_step gauge\ntutti_step 12\n"),
                          HasSubstr("\ntutti_steps_total 2\n"), HasSubstr("\ntutti_end_step 100\n"),
                          HasSubstr("\ntutti_loss +Inf\n"), HasSubstr("\ntutti_learning_rate 0.1\n"),
                          HasSubstr("\n# TYPE tutti_worker_changes_total counter\n"
                                    "tutti_worker_changes_total{change=\"lost\"} 2\n"
                                    "tutti_worker_changes_total{change=\"left\"} 0\n"
                                    "tutti_worker_changes_total{change=\"joined\"} 0\n"),
                          HasSubstr("tutti_info{version=\"0.1.0\",task=\"worker/0\",device=\"cpu\"} 1\n"),
                          HasSubstr("tutti_evaluation{value=\"a \\\"b\\\" \\\\ \\n c\"} 0.5\n"),
                          HasSubstr("tutti_step_seconds_bucket{le=\"0.3\"} 0\n"),
                          HasSubstr("tutti_step_seconds_bucket{le=\"1\"} 1\n"),
                          HasSubstr("tutti_step_seconds_bucket{le=\"+Inf\"} 2\n"
                                    "tutti_step_seconds_sum 5.5\ntutti_step_seconds_count 2\n"),
                          HasSubstr("\nprocess_resident_memory_bytes ")));
  EXPECT_THAT(text, Not(HasSubstr("\ntutti_checkpoint_step ")));
  training.checkpoint_step = 10;
  training.checkpoint_time = 1234.5;
  status.trainings["other"].step = 3;
  EXPECT_THAT(metrics_text(status, at(8)),
              AllOf(HasSubstr("\ntutti_checkpoint_step 10\n"),
                    HasSubstr("\ntutti_checkpoint_timestamp_seconds 1234.5\n"),
                    HasSubstr("\ntutti_step 12\ntutti_step{training=\"other\"} 3\n")));
}

TEST(WebStatus, is_json_whatever_it_contains) {
  Status status = training_status();
  make_step(status.trainings[""], 11, 1, 1.5, std::nan(""));
  for (int i = 0; i < 1000; ++i) status.note(LogLevel::Warning, "line \xff " + std::to_string(i), at(i).unix);
  const Page page(status);
  const Answer answer = page.answer({.method = "GET", .path = "/status.json"});
  EXPECT_EQ(answer.type, "application/json");
  const auto json = nlohmann::json::parse(answer.body);
  EXPECT_EQ(json.at("trainings").at(0).at("step"), 11);
  EXPECT_EQ(json.at("trainings").at(0).at("phase"), "training");
  EXPECT_TRUE(json.at("trainings").at(0).at("loss").is_null());
  EXPECT_THAT(json.at("events"), SizeIs(Status::kMostEvents));
  EXPECT_THAT(json.at("events").back().at("text"), HasSubstr("999"));
}

// A chief that takes over tells of changes from before.
TEST(WebStatus, has_events_in_the_order_of_their_times) {
  Status status = training_status();
  for (const double second : {2, 5, 1, 5, 3}) status.note(LogLevel::Info, "", at(second).unix);
  std::vector<double> times;
  for (const Event& event : status.events) times.push_back(event.time - at(0).unix);
  EXPECT_THAT(times, ElementsAre(1, 2, 3, 5, 5));
}

TEST(Page, answers_at_its_paths) {
  Page page(Status{.task = "worker/0", .host = "a", .device = "cpu", .started = Moment::now()});
  const auto answer = [&](const char* path) { return page.answer({.method = "GET", .path = path}); };
  EXPECT_EQ(answer("/nothing").status, 404);
  EXPECT_EQ(answer("/healthz").status, 200);
  EXPECT_EQ(answer("/healthz").body, "ok\n");
  EXPECT_THAT(answer("/").body, AllOf(HasSubstr("<!doctype html>"), HasSubstr("prefers-color-scheme: dark")));
  EXPECT_LT(answer("/").body.size(), 20'000U);
  page.update("", [](TrainingStatus& training, const Moment&) { training.phase = Phase::Failed; });
  EXPECT_EQ(answer("/healthz").status, 503);
  EXPECT_THAT(answer("/metrics").body, HasSubstr("\ntutti_healthy 0\n"));
  EXPECT_EQ(page.address(), "");
  page.serve("127.0.0.1", 0, {});
  EXPECT_EQ(get(page.address(), "/healthz", "", std::chrono::seconds(60)).status, 503);
}

}  // namespace
}  // namespace tutti::web::status_test

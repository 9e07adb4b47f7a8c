#include "tools/plot/plot.h"

#include <filesystem>
#include <limits>

#include <gmock/gmock.h>

#include "tools/plot/events.h"
#include "tools/plot/plotted_run.h"
#include "tutti/base/file.h"
#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/store/event_file.h"
#include "tutti/store/report.h"

namespace tutti::plot::plot_test {
namespace {

using chart::Point;
using store::EventWriter;
using store::ProtoMessage;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(PlottedRun, has_the_scalars_of_a_log_directory) {
  const TestFolder folder;
  {
    EventWriter writer(folder.path());
    for (const int64_t step : {1, 2, 300}) writer.scalar("loss", step, 1.0 / static_cast<double>(step));
    writer.scalar("a \"quoted\" näme", 7, kInfinity);
    writer.text("note", 1, "no number");
    writer.histogram("weights", 1, torch::ones({4}));
  }
  const PlottedRun run = read_run(folder.path() + "/");
  EXPECT_EQ(run.name, std::filesystem::path(folder.path()).filename());
  EXPECT_THAT(run.scalars.at("loss"),
              ElementsAre(Point{1, 1}, Point{2, 0.5}, Point{300, static_cast<double>(1.0F / 300)}));
  EXPECT_THAT(run.scalars.at("a \"quoted\" näme"), ElementsAre(Point{7, kInfinity}));
  EXPECT_EQ(run.scalars.size(), 2U);
}

TEST(PlottedRun, that_was_resumed_has_the_later_value_of_each_step) {
  const TestFolder folder;
  {
    EventWriter writer(folder.path());
    for (const int64_t step : {1, 2, 3, 4}) writer.scalar("loss", step, 1);
  }
  {
    EventWriter writer(folder.path(), {.resumed_after = 2});
    writer.scalar("loss", 3, 2);
    writer.scalar("loss", 3, 4);
  }
  EXPECT_THAT(read_run(folder.path()).scalars.at("loss"), ElementsAre(Point{1, 1}, Point{2, 1}, Point{3, 4}));
}

TEST(PlottedRun, ends_at_a_record_that_is_being_written_and_refuses_a_damaged_one) {
  const TestFolder folder;
  std::string path;
  {
    EventWriter writer(folder.path());
    path = writer.path();
    writer.scalar("loss", 1, 1);
    writer.scalar("loss", 2, 1);
  }
  const std::string bytes = read_file(path);
  for (size_t size = 0; size < bytes.size(); ++size) {
    PlottedRun run;
    add_events(bytes.substr(0, size), "events", run);
    EXPECT_LT(run.scalars["loss"].size(), 2U) << size;
  }
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string damaged = bytes;
    damaged[at] ^= 4;
    PlottedRun run;
    expect_error(ErrorKind::DataLoss, HasSubstr("events is damaged"),
                 [&] { add_events(damaged, "events", run); });
  }
  PlottedRun run;
  expect_error(ErrorKind::DataLoss, HasSubstr("cannot be decoded"),
               [&] { add_events(store::frame_record("\xFF\xFF"), "events", run); });
}

TEST(PlottedRun, reads_from_the_report_values_that_event_files_do_not_have) {
  const TestFolder folder;
  const std::string path = folder.path() + "/report.json";
  store::Report report;
  report.steps = 50;
  report.loss = kNan;
  report.metrics = {{"accuracy", 0.5}, {"auc", {}}};
  report.staleness = {{0, 3}, {2, 1}};
  store::write_report(path, report);
  const PlottedRun alone = read_run(path);
  EXPECT_EQ(alone.name, "report.json");
  EXPECT_THAT(alone.scalars.at("test_accuracy"), ElementsAre(Point{50, 0.5}));
  EXPECT_FALSE(alone.scalars.contains("loss"));
  EXPECT_FALSE(alone.scalars.contains("test_auc"));
  EXPECT_THAT(alone.staleness,
              ElementsAre(std::pair<const int64_t, int64_t>(0, 3), std::pair<const int64_t, int64_t>(2, 1)));
  EventWriter(folder.path()).scalar("loss", 1, 1);
  const PlottedRun both = read_run(folder.path());
  EXPECT_EQ(both.scalars.size(), 1U);
  EXPECT_EQ(both.staleness, alone.staleness);
}

// In the report, a metric of a validation is called validation_loss, a metric of an evaluation with the name
// "test" test_loss, and a metric of trainer.evaluate() accuracy. The history has the values that were
// measured during the training.
TEST(PlottedRun, has_the_same_tags_from_a_report_as_from_event_files) {
  const TestFolder folder;
  const std::string path = folder.path() + "/report.json";
  store::Report report;
  report.steps = 50;
  report.loss = 9;
  report.examples_per_second = 100;
  report.metrics = {{"accuracy", 0.5}, {"validation_loss", 0.2}, {"test_loss", 0.3}};
  report.history = {{{"step", 25}, {"loss", 0.6}, {"validation", {{"loss", 0.4}, {"test_loss", 0.5}}}},
                    {{"step", 50}, {"loss", 0.1}, {"validation", {{"loss", 0.2}, {"test_loss", nullptr}}}}};
  store::write_report(path, report);
  const PlottedRun run = read_run(path);
  EXPECT_THAT(run.scalars.at("loss"), ElementsAre(Point{25, 0.6}, Point{50, 0.1}));
  EXPECT_THAT(run.scalars.at("validation_loss"), ElementsAre(Point{25, 0.4}, Point{50, 0.2}));
  EXPECT_THAT(run.scalars.at("test_loss"), ElementsAre(Point{25, 0.5}, Point{50, 0.3}));
  EXPECT_THAT(run.scalars.at("test_accuracy"), ElementsAre(Point{50, 0.5}));
  EXPECT_EQ(run.scalars.size(), 5U);  // and the speed
}

TEST(PlottedRun, refuses_what_no_run_has_written) {
  const TestFolder folder;
  expect_error(ErrorKind::InvalidArgument, HasSubstr("does not exist"),
               [&] { read_run(folder.path() + "/none"); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("has no event files and no report.json"),
               [&] { read_run(folder.path()); });
  folder.write("sweep.json", "{}");
  for (const std::string& path : {folder.path(), folder.path() + "/"})
    expect_error(ErrorKind::InvalidArgument, HasSubstr("a sweep; name its runs: " + folder.path() + "/run-*"),
                 [&] { read_run(path); });
  for (const char* text : {"", "[]", "{}", "{\"steps\": 1}"}) {
    replace_file(folder.path() + "/other", text);
    EXPECT_THROW(read_run(folder.path() + "/other"), Error) << text;
  }
}

// --- ROC and PR curves

// Two positive and two negative examples with the probabilities 0.4, 0.9 and 0.1, 0.6, at thresholds 0,
// 0.5, 1.
const store::CurveCounts kCurve = {{2, 1, 0}, {2, 1, 0}, {0, 1, 2}, {0, 1, 2}};

TEST(PlottedRun, has_the_counts_of_pr_curves) {
  const TestFolder folder;
  {
    EventWriter writer(folder.path());
    for (const int64_t step : {1, 2, 3}) writer.pr_curve("test_auc", step, kCurve);
  }
  {
    EventWriter writer(folder.path(), {.resumed_after = 1});
    writer.pr_curve("other", 2, kCurve);
  }
  const PlottedRun run = read_run(folder.path());
  ASSERT_EQ(run.counts.size(), 2U);
  const std::vector<CountsAtStep>& curves = run.counts.at("test_auc/pr_curves");
  ASSERT_EQ(curves.size(), 1U) << "the later ones are of steps that the resumed run has not made";
  EXPECT_EQ(curves[0].step, 1);
  ASSERT_EQ(curves[0].thresholds.size(), 3U);
  EXPECT_EQ(curves[0].thresholds[1].true_positives, 1);
  EXPECT_EQ(curves[0].thresholds[0].false_positives, 2);
  EXPECT_EQ(curves[0].thresholds[2].true_negatives, 2);
  EXPECT_EQ(curves[0].thresholds[2].false_negatives, 2);
}

// An event with a PR curve of these sizes and numbers.
std::string curve_event(const std::vector<int64_t>& sizes, const std::string& numbers) {
  ProtoMessage shape;
  for (const int64_t size : sizes) shape.message(2, ProtoMessage().integer(1, size));
  const auto tensor = ProtoMessage().message(2, shape).text(4, numbers);
  const auto metadata = ProtoMessage().message(1, ProtoMessage().text(1, "pr_curves"));
  const auto value = ProtoMessage().text(1, "lying").message(8, tensor).message(9, metadata);
  return ProtoMessage().integer(2, 1).message(5, ProtoMessage().message(1, value)).bytes();
}

TEST(PlottedRun, refuses_curves_that_lie) {
  const auto floats = [](size_t count, float value) {
    std::string bytes;
    for (size_t i = 0; i < count; ++i) bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return bytes;
  };
  const auto add = [](const std::string& event) {
    PlottedRun run;
    add_events(store::frame_record(event), "events", run);
    return run;
  };
  EXPECT_EQ(add(curve_event({6, 2}, floats(12, 1))).counts.at("lying").at(0).thresholds.size(), 2U);
  for (const auto& [sizes, numbers] :
       std::vector<std::pair<std::vector<int64_t>, std::string>>{{{6, 3}, floats(12, 1)},
                                                                 {{6, int64_t{1} << 62}, floats(12, 1)},
                                                                 {{6, -2}, floats(12, 1)},
                                                                 {{2, 6}, floats(12, 1)},
                                                                 {{12}, floats(12, 1)},
                                                                 {{}, floats(12, 1)},
                                                                 {{6, 0}, ""},
                                                                 {{6, 2}, floats(12, 1) + "x"},
                                                                 {{6, 2}, ""}}) {
    const std::string event = curve_event(sizes, numbers);
    expect_error(ErrorKind::DataLoss, AllOf(HasSubstr("events"), HasSubstr("'lying'"), HasSubstr("shape")),
                 [&] { add(event); });
  }
  for (const float value :
       {-1.0F, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
    expect_error(ErrorKind::DataLoss, HasSubstr("'lying' that counts"), [&] {
      add(curve_event({6, 2}, floats(12, value)));
    });
  // An event that is cut short anywhere is an error, or an event without a curve.
  const std::string whole = curve_event({6, 2}, floats(12, 1));
  for (size_t size = 0; size < whole.size(); ++size) {
    try {
      EXPECT_TRUE(add(whole.substr(0, size)).counts.empty()) << size;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::DataLoss) << size;
    }
  }
  for (size_t at = 0; at < whole.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      try {
        add(damaged);
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::DataLoss) << at;
      }
    }
  }
}

// --- Charts

// Returns the drawing of the runs in these folders.
std::string drawing_of(const TestFolder& folder, const std::vector<std::string>& names,
                       const PlotOptions& options = {}) {
  std::vector<std::string> paths;
  for (const std::string& name : names) paths.push_back(folder / name);
  plot_runs(paths, folder / "runs.svg", options);
  return read_file(folder / "runs.svg");
}

TEST(Plots, have_the_newest_roc_and_pr_curve_of_each_tag) {
  const TestFolder folder;
  {
    EventWriter writer(folder / "run");
    writer.pr_curve("auc", 10, {{1, 0}, {0, 0}, {0, 0}, {0, 1}});  // without a negative example
    writer.pr_curve("test_auc", 10, {{2, 2}, {2, 2}, {0, 0}, {0, 0}});
    writer.pr_curve("test_auc", 20, kCurve);
  }
  const std::string svg = drawing_of(folder, {"run"});
  EXPECT_THAT(svg, AllOf(HasSubstr(">auc: ROC curve<"), HasSubstr(">auc: PR curve<"),
                         HasSubstr(">test: dotted<"), HasSubstr("run, test, step 20<"),
                         Not(HasSubstr("run, test, step 10<")), HasSubstr("<title>chance</title>"),
                         HasSubstr(">false positive rate<"), HasSubstr(">recall<")));
  // From (0, 0) over (0.5, 0.5) to (1, 1), on the diagonal.
  EXPECT_THAT(svg,
              ::testing::ContainsRegex("stroke-dasharray=\"2 4\" d=\"M[^L]*L[^L]*L[^L]*\"><title>run, test"));
}

// The points of a dotted curve, in pixels.
std::vector<Point> dotted_points(const std::string& svg, const std::string& chart) {
  const std::string sign = "stroke-dasharray=\"2 4\" d=\"";
  const size_t begin = svg.find(sign, svg.find(">" + chart + "<")) + sign.size();
  std::vector<Point> points;
  for (size_t at = begin; at < svg.size() && (svg[at] == 'M' || svg[at] == 'L'); ++at) {
    size_t read = 0;
    const double x = std::stod(svg.substr(at + 1), &read);
    at += 1 + read;
    points.push_back({x, std::stod(svg.substr(at), &read)});
    at += read - 1;
  }
  return points;
}

// The precision at the highest threshold, 0.5 here, does not determine the precision at higher ones.
TEST(Plots, let_pr_curves_begin_at_recall_0_with_precision_1) {
  const TestFolder folder;
  EventWriter(folder / "run").pr_curve("test_auc", 20, {{2, 1}, {2, 1}, {0, 1}, {0, 1}});
  const std::string svg = drawing_of(folder, {"run"});
  const std::vector<Point> roc = dotted_points(svg, "auc: ROC curve");  // from (0, 0) to (1, 1)
  const std::vector<Point> pr = dotted_points(svg, "auc: PR curve");
  ASSERT_GE(roc.size(), 2U) << svg;
  ASSERT_EQ(pr.size(), 3U) << svg;
  const double left = pr[2].x - (roc.back().x - roc.front().x);
  EXPECT_NEAR(pr[0].x, left, 0.2);                  // recall 0
  EXPECT_NEAR(pr[0].y, roc.back().y, 0.2);          // precision 1
  EXPECT_NEAR(pr[1].x, (left + pr[2].x) / 2, 0.2);  // recall 0.5
  EXPECT_NEAR(pr[1].y, (roc.front().y + roc.back().y) / 2, 0.2);
}

// Stages of a sweep have such evaluations: without marks, a dotted line would not show where it was measured.
TEST(Plots, mark_each_evaluation_if_there_are_few) {
  const TestFolder folder;
  {
    EventWriter writer(folder / "run");
    for (const int64_t step : {2, 4, 8}) writer.scalar("test_accuracy", step, step == 4 ? kNan : 0.5);
    for (int64_t step = 1; step <= 21; ++step) writer.scalar("test_error", step, 0.5);
  }
  const std::string few = drawing_of(folder, {"run"}, {.only = {"accuracy"}});
  EXPECT_THAT(few, HasSubstr(">test: dotted, rings<"));
  const auto count_of = [&few](std::string_view text) {
    int count = 0;
    for (size_t at = few.find(text); at != std::string::npos; at = few.find(text, at + 1)) ++count;
    return count;
  };
  EXPECT_EQ(count_of("r=\"4\""), 2) << few;
  EXPECT_EQ(count_of("nan at 4"), 1);
  const std::string many = drawing_of(folder, {"run"}, {.only = {"error"}});
  EXPECT_THAT(many, AllOf(HasSubstr(">test: dotted<"), Not(HasSubstr("<circle"))));
}

TEST(Plots, tell_lines_from_single_points) {
  const TestFolder folder;
  {
    EventWriter writer(folder / "run");
    for (const int64_t step : {1, 2, 3}) {
      writer.scalar("loss", step, 1);
      writer.scalar("validation_loss", step, 1);
    }
    writer.scalar("test_loss", 3, 1);
    writer.scalar("validation_accuracy", 3, 1);
  }
  EXPECT_THAT(drawing_of(folder, {"run"}), AllOf(HasSubstr(">test: rings; validation: dashed, diamonds<"),
                                                 HasSubstr(">validation: diamonds<")));
}

TEST(Plots, are_of_the_charts_that_are_asked_for) {
  const TestFolder folder;
  {
    EventWriter writer(folder / "run");
    for (const int64_t step : {1, 2, 3}) {
      writer.scalar("loss", step, static_cast<double>(step * step * step * step * step));
      writer.scalar("learning_rate", step, 1);
    }
  }
  EXPECT_THAT(drawing_of(folder, {"run"}, {.only = {"loss"}}),
              AllOf(HasSubstr(">loss<"), Not(HasSubstr("learning_rate")), Not(HasSubstr(">10<"))));
  EXPECT_THAT(drawing_of(folder, {"run"}, {.logarithmic_loss = true}), HasSubstr(">10<"));
  expect_error(ErrorKind::InvalidArgument, HasSubstr("there are: loss, learning_rate"),
               [&] { drawing_of(folder, {"run"}, {.only = {"los"}}); });
}

}  // namespace
}  // namespace tutti::plot::plot_test

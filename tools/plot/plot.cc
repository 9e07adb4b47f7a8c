#include "tools/plot/plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/plot/chart.h"
#include "tools/plot/plotted_run.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"

namespace tutti::plot {
namespace {

using chart::Chart;
using chart::Mark;
using chart::Point;

// Curves of the same measure share a chart.
struct Measure {
  std::string_view prefix;
  std::string_view name;
  Mark line;
  Mark point;  // of a single point, and of each point if there are few
  // Describe these marks in the note of a chart that has them.
  std::string_view line_note = "";
  std::string_view point_note = "";
};
constexpr std::array<Measure, 3> kMeasures = {
    {{"validation_", "validation", Mark::Dashes, Mark::Diamonds, "dashed", "diamonds"},
     {"test_", "test", Mark::Dotted, Mark::Rings, "dotted", "rings"},
     {"batch_", "training batches", Mark::Line, Mark::Line}}};
constexpr Measure kTraining = {"", "", Mark::Line, Mark::Line};

// If a run has at most this number of evaluations, each is marked at its step, on the line that connects
// them.
constexpr size_t kMostMarked = 20;

const Measure& measure_of(std::string_view tag) {
  for (const Measure& measure : kMeasures) {
    if (tag.starts_with(measure.prefix) && tag.size() > measure.prefix.size()) return measure;
  }
  return kTraining;
}

// The order of the charts.
enum class Rank { Loss, Metric, LearningRate, Speed, ClassifierCurve, Staleness };

Rank rank_of(const std::string& scalar) {
  if (scalar == "loss") return Rank::Loss;
  if (scalar == "learning_rate") return Rank::LearningRate;
  return scalar == "examples_per_second" ? Rank::Speed : Rank::Metric;
}

// A chart, and the notes about its curves.
struct NotedChart {
  Rank rank;
  std::string name;
  Chart chart;
  // The style of curves, by the name of the measure.
  std::map<std::string_view, std::set<std::string_view>> looks = {};

  // Adds a line, or the mark of a single point.
  void add(const std::string& run, int colour, const Measure& measure, std::vector<Point> points,
           const std::string& more = "") {
    const bool is_single = points.size() == 1;
    add_series(run + (measure.name.empty() ? "" : ", ") + std::string(measure.name) + more, colour,
               is_single ? measure.point : measure.line, std::move(points));
    add_look(measure, is_single ? measure.point_note : measure.line_note);
  }
  // Also marks the points of a line, if they are few.
  void add_marked(const std::string& run, int colour, const Measure& measure,
                  const std::vector<Point>& points) {
    add(run, colour, measure, points);
    if (measure.point_note.empty() || points.size() == 1 || points.size() > kMostMarked) return;
    std::vector<Point> finite = points;  // the line has crosses for the other points
    std::erase_if(finite, [](const Point& point) { return !std::isfinite(point.y); });
    add_series(chart.series.back().name, colour, measure.point, std::move(finite));
    add_look(measure, measure.point_note);
  }

  // Returns "test: dotted, rings; validation: dashed".
  std::string note() const {
    std::vector<std::string> notes;
    for (const auto& [measure, all] : looks)
      notes.push_back(fmt::format("{}: {}", measure, fmt::join(all, ", ")));
    return fmt::format("{}", fmt::join(notes, "; "));
  }

 private:
  void add_series(std::string of, int colour, Mark mark, std::vector<Point> points) {
    chart.series.push_back(
        {.name = std::move(of), .mark = mark, .points = std::move(points), .colour = colour});
  }
  void add_look(const Measure& measure, std::string_view look) {
    if (!look.empty()) looks[measure.name].insert(look);
  }
};

class Charts {
 public:
  NotedChart& chart_named(const std::string& name, Rank rank, const Chart& like) {
    const auto found = std::find_if(charts_.begin(), charts_.end(),
                                    [&](const NotedChart& c) { return c.rank == rank && c.name == name; });
    if (found != charts_.end()) return *found;
    charts_.push_back({.rank = rank, .name = name, .chart = like});
    return charts_.back();
  }

  std::vector<NotedChart> in_order() && {
    std::sort(charts_.begin(), charts_.end(), [](const NotedChart& a, const NotedChart& b) {
      return std::tie(a.rank, a.name) < std::tie(b.rank, b.name);
    });
    return std::move(charts_);
  }

 private:
  std::vector<NotedChart> charts_;
};

// The axis of steps is the same in all charts. It begins at 0, unless no run has made the first steps.
chart::Axis steps_of(const std::vector<PlottedRun>& runs) {
  double least = std::numeric_limits<double>::infinity();
  double most = -least;
  for (const PlottedRun& run : runs) {
    for (const auto& [tag, points] : run.scalars) {
      least = std::min(least, points.front().x);
      most = std::max(most, points.back().x);
    }
  }
  if (least > 0 && least < most / 2) least = 0;
  if (!(least < most)) return {.label = "step"};  // of only one step, or none
  return {.label = "step", .least = least, .most = most};
}

void add_scalars(const std::vector<PlottedRun>& runs, const PlotOptions& options, Charts& charts) {
  const chart::Axis steps = steps_of(runs);
  for (size_t i = 0; i < runs.size(); ++i) {
    for (const auto& [tag, points] : runs[i].scalars) {
      const Measure& measure = measure_of(tag);
      const std::string name = tag.substr(measure.prefix.size());
      const chart::Axis values{.logarithmic = options.logarithmic_loss && name == "loss"};
      charts.chart_named(name, rank_of(name), {.x = steps, .y = values})
          .add_marked(runs[i].name, static_cast<int>(i), measure, points);
    }
  }
}

// --- Classifiers

// There is no precision at a threshold above which there is no example. As in scikit-learn, the curve begins
// at recall 0 with the precision 1, which is also the value of metrics::CurvePoint for no examples.
// TensorBoard's curve begins at the highest threshold below an example.
std::vector<Point> precision_of(const std::vector<Counts>& thresholds) {
  std::vector<Point> points;
  for (const Counts& at : thresholds) {
    const double positives = at.true_positives + at.false_negatives;
    const double taken = at.true_positives + at.false_positives;
    if (positives > 0 && taken > 0)
      points.push_back({at.true_positives / positives, at.true_positives / taken});
  }
  if (!points.empty()) points.push_back({0, 1});
  return points;
}

// The ends belong to thresholds below and above all examples.
std::vector<Point> roc_of(const std::vector<Counts>& thresholds) {
  std::vector<Point> points;
  for (const Counts& at : thresholds) {
    const double positives = at.true_positives + at.false_negatives;
    const double negatives = at.false_positives + at.true_negatives;
    if (positives > 0 && negatives > 0)
      points.push_back({at.false_positives / negatives, at.true_positives / positives});
  }
  if (points.empty()) return points;
  points.insert(points.begin(), {1, 1});
  points.push_back({0, 0});
  return points;
}

// The rates fall with rising thresholds. Reversed, they ascend, and points of equal rates keep their order.
std::vector<Point> ascending(std::vector<Point> points) {
  std::reverse(points.begin(), points.end());
  std::stable_sort(points.begin(), points.end(), [](const Point& a, const Point& b) { return a.x < b.x; });
  return points;
}

chart::Axis rate(const char* label) { return {.label = label, .least = 0, .most = 1}; }

// The newest curves of each tag.
void add_curves(const std::vector<PlottedRun>& runs, Charts& charts) {
  constexpr std::string_view kSuffix = "/pr_curves";  // the suffix of Tutti's tags; other tags may lack it
  const Chart roc{.x = rate("false positive rate"),
                  .y = rate("true positive rate"),
                  .series = {{.name = "chance", .points = {{0, 0}, {1, 1}}, .colour = chart::kGrey}}};
  const Chart precision{.x = rate("recall"), .y = rate("precision")};
  for (size_t i = 0; i < runs.size(); ++i) {
    for (const auto& [full_tag, steps] : runs[i].counts) {
      const std::string tag =
          full_tag.substr(0, full_tag.size() - (full_tag.ends_with(kSuffix) ? kSuffix.size() : size_t{0}));
      const Measure& measure = measure_of(tag);
      const std::string name = tag.substr(measure.prefix.size());
      const CountsAtStep& newest = steps.back();
      const auto add = [&](const char* kind, const Chart& like, const std::vector<Point>& points) {
        if (points.empty()) return;
        charts.chart_named(fmt::format("{}: {}", name, kind), Rank::ClassifierCurve, like)
            .add(runs[i].name, static_cast<int>(i), measure, ascending(points),
                 fmt::format(", step {:g}", newest.step));
      };
      add("ROC curve", roc, roc_of(newest.thresholds));
      add("PR curve", precision, precision_of(newest.thresholds));
    }
  }
}

// The share of the updates of each staleness.
void add_staleness(const std::vector<PlottedRun>& runs, Charts& charts) {
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::map<int64_t, int64_t>& staleness = runs[i].staleness;
    if (staleness.empty()) continue;
    double sum = 0;
    for (const auto& [steps, updates] : staleness) sum += static_cast<double>(updates);
    std::vector<Point> points;
    for (const auto& [steps, updates] : staleness)
      points.push_back({static_cast<double>(steps), static_cast<double>(updates) / std::max(sum, 1.0)});
    charts
        .chart_named(
            "staleness", Rank::Staleness,
            {.x = {.label = "steps since the parameters were read"}, .y = {.label = "share of the updates"}})
        .add(runs[i].name, static_cast<int>(i), kTraining, std::move(points));
  }
}

std::vector<NotedChart> charts_of(const std::vector<PlottedRun>& runs, const PlotOptions& options) {
  Charts all;
  add_scalars(runs, options, all);
  add_curves(runs, all);
  add_staleness(runs, all);
  std::vector<NotedChart> charts = std::move(all).in_order();
  if (options.only.empty() || charts.empty()) return charts;
  std::vector<std::string> names;
  for (const NotedChart& chart : charts) names.push_back(chart.name);
  for (const std::string& name : options.only) {
    if (std::find(names.begin(), names.end(), name) == names.end())
      fail(ErrorKind::InvalidArgument, "--only {}: there is no such chart; there are: {}", name,
           fmt::join(names, ", "));
  }
  std::erase_if(charts, [&](const NotedChart& chart) {
    return std::find(options.only.begin(), options.only.end(), chart.name) == options.only.end();
  });
  return charts;
}

// Runs of several folders may have the same name.
std::vector<PlottedRun> read_runs(const std::vector<std::string>& paths) {
  std::vector<PlottedRun> runs;
  std::multiset<std::string> names;
  for (const std::string& path : paths) {
    runs.push_back(read_run(path));
    names.insert(runs.back().name);
  }
  for (size_t i = 0; i < runs.size(); ++i) {
    if (names.count(runs[i].name) > 1) runs[i].name = paths[i];
  }
  return runs;
}

}  // namespace

void plot_runs(const std::vector<std::string>& paths, const std::string& out, const PlotOptions& options) {
  const bool is_page = out.ends_with(".html");
  if (!is_page && !out.ends_with(".svg"))
    fail(ErrorKind::InvalidArgument, "--out {}: the name has to end in .svg or .html", out);
  const std::vector<PlottedRun> runs = read_runs(paths);
  std::vector<Chart> charts;
  for (NotedChart& noted : charts_of(runs, options)) {
    noted.chart.title = noted.name;
    noted.chart.note = noted.note();
    noted.chart.legend = chart::Legend::None;
    charts.push_back(std::move(noted.chart));
  }
  if (charts.empty())
    fail(ErrorKind::InvalidArgument, "there is nothing to draw: {} {} written no numbers yet",
         fmt::join(paths, ", "), paths.size() == 1 ? "has" : "have");
  std::vector<std::string> names;
  for (const PlottedRun& run : runs) names.push_back(run.name);
  const std::string svg = chart::svg_of(charts, names);
  replace_file(out, is_page ? chart::page_of(svg, fmt::format("{}", fmt::join(paths, ", "))) : svg);
}

}  // namespace tutti::plot

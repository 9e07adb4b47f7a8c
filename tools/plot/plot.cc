#include "tools/plot/plot.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/plot/plotted_run.h"
#include "tools/plot/svg.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"

namespace tutti::plot {
namespace {

// Curves of the same measure share a chart.
struct Measure {
  std::string_view prefix;
  std::string_view name;
  Line line;
};
constexpr std::array<Measure, 3> kMeasures = {{{"validation_", "validation", Line::Dashed},
                                               {"test_", "test", Line::Dotted},
                                               {"batch_", "training batches", Line::Solid}}};

struct Tag {
  std::string chart;
  std::string_view measure = "";
  Line line = Line::Solid;
};

Tag tag_of(const std::string& tag) {
  for (const Measure& measure : kMeasures) {
    if (tag.starts_with(measure.prefix) && tag.size() > measure.prefix.size())
      return {tag.substr(measure.prefix.size()), measure.name, measure.line};
  }
  return {tag};
}

// The loss comes first, and last how the training went.
int rank_of(const std::string& chart) {
  if (chart == "loss") return 0;
  if (chart == "learning_rate") return 2;
  return chart == "examples_per_second" ? 3 : 1;
}

Chart& chart_called(std::vector<Chart>& charts, const std::string& title, const char* x_label) {
  const auto found =
      std::find_if(charts.begin(), charts.end(), [&](const Chart& chart) { return chart.title == title; });
  if (found != charts.end()) return *found;
  charts.push_back({.title = title, .x_label = x_label});
  return charts.back();
}

// The share of the updates of each staleness.
Curve staleness_of(const PlottedRun& run, size_t colour) {
  double all = 0;
  for (const auto& [steps, updates] : run.staleness) all += static_cast<double>(updates);
  Curve curve{.name = run.name, .colour = colour};
  for (const auto& [steps, updates] : run.staleness)
    curve.points.push_back({static_cast<double>(steps), static_cast<double>(updates) / std::max(all, 1.0)});
  return curve;
}

std::vector<Chart> charts_of(const std::vector<PlottedRun>& runs) {
  std::vector<Chart> charts;
  for (size_t i = 0; i < runs.size(); ++i) {
    for (const auto& [name, points] : runs[i].scalars) {
      const Tag tag = tag_of(name);
      Chart& chart = chart_called(charts, tag.chart, "step");
      const std::string curve = tag.measure.empty() ? "" : fmt::format(", {}", tag.measure);
      chart.curves.push_back({.name = runs[i].name + curve, .colour = i, .line = tag.line, .points = points});
    }
  }
  std::stable_sort(charts.begin(), charts.end(), [](const Chart& a, const Chart& b) {
    const int left = rank_of(a.title);
    const int right = rank_of(b.title);
    return left != right ? left < right : a.title < b.title;
  });
  for (Chart& chart : charts) {
    std::set<std::string> lines;
    for (const Curve& curve : chart.curves) {
      if (curve.line == Line::Dashed) lines.insert("validation: dashed");
      if (curve.line == Line::Dotted) lines.insert("test: dotted");
    }
    std::string notes;
    for (const std::string& line : lines) notes += (notes.empty() ? " (" : ", ") + line;
    if (!notes.empty()) chart.title += notes + ")";
  }
  for (size_t i = 0; i < runs.size(); ++i) {
    if (!runs[i].staleness.empty())
      chart_called(charts, "staleness: share of the updates", "steps since the parameters were read")
          .curves.push_back(staleness_of(runs[i], i));
  }
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

void plot_runs(const std::vector<std::string>& paths, const std::string& out) {
  const bool is_page = out.ends_with(".html");
  if (!is_page && !out.ends_with(".svg"))
    fail(ErrorKind::InvalidArgument, "--out {}: the name has to end in .svg or .html", out);
  const std::vector<PlottedRun> runs = read_runs(paths);
  const std::vector<Chart> charts = charts_of(runs);
  if (charts.empty())
    fail(ErrorKind::InvalidArgument, "there is nothing to draw: {} {} written no numbers yet",
         fmt::join(paths, ", "), paths.size() == 1 ? "has" : "have");
  std::vector<LegendEntry> legend;
  for (size_t i = 0; i < runs.size(); ++i) legend.push_back({runs[i].name, i});
  const std::string svg = draw(charts, legend);
  replace_file(out, is_page ? page(svg, fmt::format("{}", fmt::join(paths, ", "))) : svg);
}

}  // namespace tutti::plot

#include "examples/04_in_graph/curve.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include <fmt/format.h>

#include "tools/plot/chart.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"

namespace example {
namespace {

namespace chart = tutti::chart;

std::vector<chart::Point> points_of(const std::vector<double>& losses) {
  std::vector<chart::Point> points;
  for (size_t step = 0; step < losses.size(); ++step)
    points.push_back({static_cast<double>(step + 1), losses[step]});
  return points;
}

}  // namespace

// Writes enough digits to distinguish any two numbers.
void write_curve(const std::string& path, const std::vector<double>& losses) {
  std::string text;
  for (const double loss : losses) text += fmt::format("{}\n", loss);
  tutti::replace_file(path, text);
}

std::vector<double> read_curve(const std::string& path) {
  std::ifstream file(path);
  if (!file) tutti::fail(tutti::ErrorKind::InvalidArgument, "--against: {} cannot be read", path);
  std::vector<double> losses;
  for (double loss = 0; file >> loss;) losses.push_back(loss);
  return losses;
}

std::string compare(const std::vector<double>& ours, const std::vector<double>& theirs) {
  if (ours == theirs) return fmt::format("the curves are the same in all {} steps", ours.size());
  const auto [here, there] = std::mismatch(ours.begin(), ours.end(), theirs.begin(), theirs.end());
  return fmt::format("the curves, of {1} and {2} steps, differ from step {0} on", here - ours.begin() + 1,
                     ours.size(), theirs.size());
}

void draw(const std::string& path, const std::vector<double>& ours, const std::vector<double>& theirs,
          const std::vector<double>& fitted) {
  chart::Chart losses;
  losses.title = "y = e^x, 16 hidden units";
  losses.x = {.label = "step"};
  losses.y = {.label = "loss", .logarithmic = true};
  losses.legend = chart::Legend::UpperRight;
  losses.series = {{"one process", chart::Mark::Line, points_of(theirs)},
                   {"a master and its workers", chart::Mark::Dashes, points_of(ours)}};
  if (fitted.empty()) return tutti::replace_file(path, chart::svg_of({losses}));
  chart::Chart fit;
  fit.title = "The fitted curve";
  fit.x = {.label = "x"};
  fit.y = {.label = "y"};
  fit.legend = chart::Legend::UpperLeft;
  fit.series = {{"e^x", chart::Mark::Line}, {"the network", chart::Mark::Dashes}};
  for (size_t i = 0; i < fitted.size(); ++i) {
    const double x = -1 + 2 * static_cast<double>(i) / static_cast<double>(fitted.size() - 1);
    fit.series[0].points.push_back({x, std::exp(x)});  // no weights
    fit.series[1].points.push_back({x, fitted[i]});
  }
  tutti::replace_file(path, chart::svg_of({losses, fit}));
}

}  // namespace example

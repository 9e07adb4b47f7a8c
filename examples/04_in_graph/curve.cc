#include "examples/04_in_graph/curve.h"

#include <algorithm>
#include <fstream>

#include <fmt/format.h>

#include "tutti/base/chart.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"

namespace example {
namespace {

namespace chart = tutti::chart;

std::vector<std::pair<double, double>> points_of(const std::vector<double>& losses) {
  std::vector<std::pair<double, double>> points;
  for (size_t step = 0; step < losses.size(); ++step)
    points.emplace_back(static_cast<double>(step + 1), losses[step]);
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

void draw(const std::string& path, const std::vector<double>& ours, const std::vector<double>& theirs) {
  double most = 0;
  double least = 1;
  for (const auto* losses : {&ours, &theirs}) {
    for (const double loss : *losses) {
      most = std::max(most, loss);
      least = std::min(least, loss);
    }
  }
  chart::Chart picture;
  picture.title = "y = e^x, 16 hidden units";
  const auto steps = static_cast<double>(std::max(ours.size(), theirs.size()));
  picture.x = {.label = "step", .least = 1, .most = steps, .ticks = {1, steps / 2, steps}};
  picture.y = {.label = "loss", .least = least / 2, .most = most, .logarithmic = true};
  for (double tick = 1; tick > least; tick /= 10) picture.y.ticks.push_back(tick);
  picture.series = {{"one process", chart::Mark::Line, points_of(theirs), 0},
                    {"a master and its workers", chart::Mark::Dashes, points_of(ours), 1}};
  tutti::replace_file(path, chart::svg_of({picture}));
}

}  // namespace example

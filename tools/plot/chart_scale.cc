#include "tools/plot/chart_scale.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace tutti::chart {
namespace {

constexpr double kMost = std::numeric_limits<double>::max();
constexpr int kIntervals = 5;  // the approximate number of intervals between labelled numbers

double finite(double value) { return std::clamp(value, -kMost, kMost); }

// Returns 1, 2 or 5 times a power of ten, such that `kIntervals` of them cover the range or nearly so.
double round_step(double least, double most) {
  const double rough = most / kIntervals - least / kIntervals;  // the difference itself could overflow
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (rough <= factor * power) return factor * power;
  }
  return 10 * power;
}

// Widens a range whose ends are the same, or nearly so.
void widen(double& least, double& most) {
  constexpr double kNarrowest = 1e-9;
  constexpr double kTiny = 1e-300;
  most = std::max(least, most);
  const double magnitude = std::max(std::abs(least), std::abs(most));
  if (most / 2 - least / 2 > std::max(magnitude, kTiny) * kNarrowest) return;
  const double room = magnitude > kTiny ? magnitude / 2 : 1;
  least = finite(least - room);
  most = finite(most + room);
}

// Returns the number with as many digits as distinguish it from its neighbours.
std::string text_of(double number, double step, double magnitude) {
  constexpr int kFewest = 6;
  const int digits = static_cast<int>(std::ceil(std::log10(magnitude / step))) + 1;
  return fmt::format("{:.{}g}", number, std::clamp(digits, kFewest, 17));
}

}  // namespace

Scale::Scale(const Axis& axis, const std::vector<double>& values) : axis_(axis) {
  double least = std::numeric_limits<double>::infinity();
  double most = -least;
  for (const double value : values) {
    if (!can_show(value)) continue;
    least = std::min(least, value);
    most = std::max(most, value);
  }
  if (least > most) {
    least = axis.least.value_or(axis.logarithmic ? 1 : 0);
    most = axis.most.value_or(axis.logarithmic ? 10 : 1);
  }
  least_ = axis.least.value_or(least);
  most_ = axis.most.value_or(most);
  axis.logarithmic ? choose_logarithmic() : choose_linear();
  if (axis.ticks.empty()) return;
  ticks_.clear();
  for (const double tick : axis.ticks) ticks_.push_back({tick, fmt::format("{:g}", tick)});
}

void Scale::choose_linear() {
  widen(least_, most_);
  const double step = round_step(least_, most_);
  // A value that differs from a round number only by its rounding, such as a float32, needs no further step.
  constexpr double kRounding = 1e-6;
  if (!axis_.least) least_ = finite(std::floor(least_ / step + kRounding) * step);
  if (!axis_.most) most_ = finite(std::ceil(most_ / step - kRounding) * step);
  const double magnitude = std::max(std::abs(least_), std::abs(most_));
  for (double i = std::ceil(least_ / step - kRounding); i <= std::floor(most_ / step + kRounding); ++i) {
    const double value = i * step + 0.0;  // not -0
    ticks_.push_back({value, text_of(value, step, magnitude)});
  }
}

void Scale::choose_logarithmic() {
  // The greatest and least powers of ten that are normal (not denormal) numbers.
  const auto power_below = [](double value) { return std::max(std::floor(std::log10(value)), -307.0); };
  const auto power_above = [](double value) { return std::min(std::ceil(std::log10(value)), 308.0); };
  double first = power_below(least_);
  double last = power_above(most_);
  if (first >= last) first < 308 ? last = first + 1 : first = last - 1;
  if (!axis_.least) least_ = std::pow(10, first);
  if (!axis_.most) most_ = std::pow(10, last);
  if (least_ >= most_) most_ = 10 * least_;
  const double stride = std::max(1.0, std::ceil((last - first) / kIntervals));
  for (double power = first; power <= last; power += stride) {
    const double value = std::pow(10, power);
    if (value >= least_ && value <= most_) ticks_.push_back({value, fmt::format("{:g}", value)});
  }
}

bool Scale::can_show(double value) const { return std::isfinite(value) && (!axis_.logarithmic || value > 0); }

double Scale::share(double value) const {
  // Halves, since a difference could overflow.
  const double part = axis_.logarithmic
                          ? (std::log2(value) - std::log2(least_)) / (std::log2(most_) - std::log2(least_))
                          : (value / 2 - least_ / 2) / (most_ / 2 - least_ / 2);
  return std::clamp(part, 0.0, 1.0);
}

}  // namespace tutti::chart

#include "tools/plot/svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace tutti::plot {
namespace {

// Each has a contrast of at least 3 with white and with black (WCAG 2).
constexpr std::array<const char*, 8> kColours = {"#3b7dd8", "#d8592f", "#2b9348", "#a855c7",
                                                 "#b07d12", "#d6457f", "#16908c", "#7a7f87"};
constexpr const char* kInk = "#7a7f87";

constexpr double kWidth = 460;  // of a chart with its labels
constexpr double kHeight = 290;
constexpr double kLeft = 62;
constexpr double kRight = 16;
constexpr double kTop = 34;
constexpr double kBottom = 46;
constexpr double kPlotWidth = kWidth - kLeft - kRight;
constexpr double kPlotHeight = kHeight - kTop - kBottom;
constexpr int kColumns = 2;
constexpr double kLegendLine = 20;

const char* colour_of(size_t index) { return kColours.at(index % kColours.size()); }

const char* dashes_of(Line line) {
  if (line == Line::Dashed) return R"( stroke-dasharray="7 4")";
  return line == Line::Dotted ? R"( stroke-dasharray="2 4")" : "";
}

bool is_finite(const Point& point) { return std::isfinite(point.x) && std::isfinite(point.y); }

// The place of a value, as a part of the axis. Halves avoid an overflow of the difference.
double share_of(double value, const Axis& axis) {
  return (value / 2 - axis.begin / 2) / (axis.end / 2 - axis.begin / 2);
}

struct Frame {
  double left = 0;
  double top = 0;
  Axis x = {};
  Axis y = {};

  double at_x(double value) const { return left + kLeft + share_of(value, x) * kPlotWidth; }
  double at_y(double value) const { return top + kTop + (1 - share_of(value, y)) * kPlotHeight; }
};

// The points between two gaps, of which at most two are in each column of pixels: the least and the greatest.
std::vector<Point> thinned(const std::vector<Point>& points, const Frame& frame) {
  std::vector<Point> kept;
  for (size_t begin = 0; begin < points.size();) {
    const double column = std::floor(frame.at_x(points[begin].x));
    size_t end = begin + 1;
    while (end < points.size() && std::floor(frame.at_x(points[end].x)) == column) ++end;
    const auto [least, greatest] = std::minmax_element(
        points.begin() + static_cast<ptrdiff_t>(begin), points.begin() + static_cast<ptrdiff_t>(end),
        [](const Point& a, const Point& b) { return a.y < b.y; });
    kept.push_back(*std::min(least, greatest));
    if (least != greatest) kept.push_back(*std::max(least, greatest));
    begin = end;
  }
  return kept;
}

class Drawing {
 public:
  template <class... Values>
  void add(fmt::format_string<Values...> format, Values&&... values) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Values>(values)...);
  }
  void label(double x, double y, const char* anchor, std::string_view text) {
    add("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, escaped(text));
  }
  std::string& text() { return text_; }

 private:
  std::string text_;
};

Axis axis_for(const Chart& chart, double Point::*coordinate, int count) {
  double least = std::numeric_limits<double>::infinity();
  double greatest = -least;
  for (const Curve& curve : chart.curves) {
    for (const Point& point : curve.points) {
      if (!std::isfinite(point.*coordinate)) continue;
      least = std::min(least, point.*coordinate);
      greatest = std::max(greatest, point.*coordinate);
    }
  }
  return least <= greatest ? axis_of(least, greatest, count) : Axis();
}

// Calls `use` with each of the numbers of an axis.
template <class Use>
void for_each_number(const Axis& axis, const Use& use) {
  const auto count = static_cast<int>(
      std::lround(share_of(axis.end, axis) * (axis.end / axis.step - axis.begin / axis.step)));
  for (int i = 0; i <= count; ++i) {
    const double number = axis.begin + i * axis.step;
    use(std::abs(number) < axis.step / 2 ? 0 : number);
  }
}

void add_axes(const Chart& chart, const Frame& frame, Drawing& to) {
  const double right = frame.left + kLeft + kPlotWidth;
  const double bottom = frame.top + kTop + kPlotHeight;
  for_each_number(frame.y, [&](double number) {
    const double y = frame.at_y(number);
    to.add("<path class=\"grid\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>\n", frame.left + kLeft, y, right);
    to.label(frame.left + kLeft - 6, y + 4, "end", fmt::format("{:.6g}", number));
  });
  for_each_number(frame.x, [&](double number) {
    to.label(frame.at_x(number), bottom + 16, "middle", fmt::format("{:.6g}", number));
  });
  to.add("<path class=\"axis\" d=\"M{:.1f} {:.1f}V{:.1f}H{:.1f}\"/>\n", frame.left + kLeft, frame.top + kTop,
         bottom, right);
  to.label(frame.left + kLeft + kPlotWidth / 2, bottom + 34, "middle", chart.x_label);
  to.add("<text class=\"title\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", frame.left + kLeft, frame.top + 20,
         escaped(chart.title));
}

void add_points(const Curve& curve, const std::vector<Point>& points, const Frame& frame, Drawing& to) {
  const char* const colour = colour_of(curve.colour);
  if (points.size() == 1) {
    to.add("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"><title>{}</title></circle>\n",
           frame.at_x(points[0].x), frame.at_y(points[0].y), colour, escaped(curve.name));
    return;
  }
  to.add("<path class=\"curve\" stroke=\"{}\"{} d=\"", colour, dashes_of(curve.line));
  const char* command = "M";
  for (const Point& point : thinned(points, frame)) {
    to.add("{}{:.1f} {:.1f}", command, frame.at_x(point.x), frame.at_y(point.y));
    command = "L";
  }
  to.add("\"><title>{}</title></path>\n", escaped(curve.name));
}

void add_curve(const Curve& curve, const Frame& frame, Drawing& to) {
  std::vector<Point> connected;
  std::optional<double> marked;  // the column of the last mark
  const auto finish = [&] {
    if (!connected.empty()) add_points(curve, connected, frame, to);
    connected.clear();
  };
  for (const Point& point : curve.points) {
    if (is_finite(point)) {
      connected.push_back(point);
      continue;
    }
    finish();
    const double x = std::isfinite(point.x) ? std::clamp(frame.at_x(point.x), frame.left + kLeft,
                                                         frame.left + kLeft + kPlotWidth)
                                            : frame.left + kLeft;
    if (marked == std::floor(x)) continue;
    marked = std::floor(x);
    to.add(
        "<path class=\"curve\" stroke=\"{}\" d=\"M{:.1f} {:.1f}l6 6m0 -6l-6 6\">"
        "<title>{}: not a finite number at {:g}</title></path>\n",
        colour_of(curve.colour), x - 3, frame.top + kTop, escaped(curve.name), point.x);
  }
  finish();
}

}  // namespace

std::string escaped(std::string_view text) {
  // Replaces what is not UTF-8.
  const std::string valid =
      nlohmann::json::parse(
          nlohmann::json(std::string(text)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace))
          .get<std::string>();
  std::string result;
  for (const char letter : valid) {
    const bool is_control = static_cast<unsigned char>(letter) < ' ' && letter != '\t' && letter != '\n';
    if (letter == '&')
      result += "&amp;";
    else if (letter == '<')
      result += "&lt;";
    else if (letter == '>')
      result += "&gt;";
    else if (letter == '"')
      result += "&quot;";
    else
      result += is_control ? "\xEF\xBF\xBD" : std::string(1, letter);
  }
  return result;
}

Axis axis_of(double least, double greatest, int count) {
  const double magnitude = std::max({std::abs(least), std::abs(greatest), 1e-300});
  // All values are the same, or as good as.
  constexpr double kNarrowest = 1e-9;
  if (greatest / 2 - least / 2 < magnitude * kNarrowest) {
    const double room = magnitude > 1e-290 ? magnitude / 2 : 1;
    least -= room;
    greatest += room;
  }
  const double rough = (greatest / count - least / count);
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (rough <= factor * power) step = factor * power;
  }
  constexpr double kMost = std::numeric_limits<double>::max();
  return {.begin = std::max(-kMost, std::floor(least / step) * step),
          .end = std::min(kMost, std::ceil(greatest / step) * step),
          .step = step};
}

std::string draw(const std::vector<Chart>& charts, const std::vector<LegendEntry>& legend) {
  constexpr int kNumbers = 5;
  const double head = 12 + kLegendLine * static_cast<double>(legend.size());
  const auto columns = static_cast<double>(std::clamp<size_t>(charts.size(), 1, kColumns));
  const double rows = std::ceil(static_cast<double>(charts.size()) / kColumns);
  Drawing drawing;
  drawing.add(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\">\n",
      columns * kWidth, head + rows * kHeight);
  drawing.add(
      "<style>text{{font:12px system-ui,sans-serif;fill:{0}}}.title{{font-weight:bold}}"
      ".grid{{stroke:{0};stroke-opacity:.25}}.axis{{stroke:{0};fill:none}}"
      ".curve{{fill:none;stroke-width:1.5;stroke-linejoin:round}}</style>\n",
      kInk);
  for (size_t i = 0; i < legend.size(); ++i) {
    const double y = 12 + kLegendLine * static_cast<double>(i);
    drawing.add("<path class=\"curve\" stroke=\"{}\" d=\"M{:.1f} {:.1f}h24\"/>\n",
                colour_of(legend[i].colour), kLeft, y + 6);
    drawing.label(kLeft + 32, y + 10, "start", legend[i].name);
  }
  for (size_t i = 0; i < charts.size(); ++i) {
    const Chart& chart = charts[i];
    const size_t column = i % kColumns;
    const size_t row = i / kColumns;
    const Frame frame{.left = kWidth * static_cast<double>(column),
                      .top = head + kHeight * static_cast<double>(row),
                      .x = axis_for(chart, &Point::x, kNumbers),
                      .y = axis_for(chart, &Point::y, kNumbers)};
    add_axes(chart, frame, drawing);
    for (const Curve& curve : chart.curves) add_curve(curve, frame, drawing);
  }
  drawing.add("</svg>\n");
  return std::move(drawing.text());
}

std::string page(const std::string& svg, std::string_view title) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width\">\n<title>{}</title>\n<style>:root{{color-scheme:light dark}}"
      "svg{{max-width:100%;height:auto}}</style>\n{}</html>\n",
      escaped(title), svg);
}

}  // namespace tutti::plot

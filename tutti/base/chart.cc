#include "tutti/base/chart.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

namespace tutti::chart {
namespace {

constexpr double kWidth = 480;
constexpr double kHeight = 380;
constexpr double kLeft = 64;
constexpr double kRight = 20;
constexpr double kTop = 44;
constexpr double kBottom = 52;
constexpr double kLine = 18;  // of one line of the legend

// The palette of Okabe and Ito, whose colours people with colour blindness can tell apart.
constexpr std::array<const char*, 5> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#555555"};

struct Point {
  double x;
  double y;
};

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '<') {
      result += "&lt;";
    } else if (c == '>') {
      result += "&gt;";
    } else if (c == '&') {
      result += "&amp;";
    } else {
      result += c;
    }
  }
  return result;
}

// Returns the position of the value on the axis: 0 at `least`, 1 at `most`.
double share(const Axis& axis, double value) {
  const double part = axis.logarithmic ? std::log2(value / axis.least) / std::log2(axis.most / axis.least)
                                       : (value - axis.least) / (axis.most - axis.least);
  return std::clamp(part, 0.0, 1.0);
}

Point place(const Chart& chart, int index, double x, double y) {
  return {index * kWidth + kLeft + share(chart.x, x) * (kWidth - kLeft - kRight),
          kHeight - kBottom - share(chart.y, y) * (kHeight - kTop - kBottom)};
}

std::string text(Point at, const char* anchor, const std::string& words, const char* more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", at.x, at.y, anchor,
                     more, escaped(words));
}

std::string stroke(Point from, Point to, const char* colour, const char* more = "") {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"{}/>\n",
                     from.x, from.y, to.x, to.y, colour, more);
}

std::string dot(Point at, const char* colour, Mark mark) {
  return fmt::format(
      "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\" stroke=\"{}\" stroke-width=\"2\"/>\n", at.x,
      at.y, mark == Mark::Rings ? "white" : colour, colour);
}

bool is_line(Mark mark) { return mark == Mark::Line || mark == Mark::Dashes; }

std::string axes(const Chart& chart, int index) {
  const Axis& x = chart.x;
  const Axis& y = chart.y;
  std::string svg;
  for (const double tick : y.ticks) {
    const Point at = place(chart, index, x.least, tick);
    svg += stroke(at, place(chart, index, x.most, tick), "#dddddd");
    svg += text({at.x - 8, at.y + 4}, "end", fmt::format("{:g}", tick));
  }
  for (const double tick : x.ticks) {
    const Point at = place(chart, index, tick, y.least);
    svg += stroke(at, {at.x, at.y + 5}, "black");
    svg += text({at.x, at.y + 20}, "middle", fmt::format("{:g}", tick));
  }
  const Point corner = place(chart, index, x.least, y.least);
  const Point top = place(chart, index, x.least, y.most);
  const Point right = place(chart, index, x.most, y.least);
  svg += stroke(corner, top, "black") + stroke(corner, right, "black");
  svg += text({(corner.x + right.x) / 2, corner.y + 40}, "middle", x.label);
  const Point side = {index * kWidth + 18, (corner.y + top.y) / 2};
  svg += text(side, "middle", y.label,
              fmt::format(" transform=\"rotate(-90 {:.1f} {:.1f})\"", side.x, side.y).c_str());
  svg += text({(corner.x + right.x) / 2, 24}, "middle", chart.title, " font-weight=\"bold\"");
  return svg;
}

const char* colour_of(const Series& series, size_t index) {
  const size_t number = series.colour >= 0 ? static_cast<size_t>(series.colour) : index;
  return kColours[number % kColours.size()];
}

std::string curve(const Chart& chart, int index, const Series& series, const char* colour) {
  std::string svg;
  std::string points;
  for (const auto& [x, y] : series.points) {
    const Point at = place(chart, index, x, y);
    if (is_line(series.mark)) {
      points += fmt::format("{:.1f},{:.1f} ", at.x, at.y);
    } else {
      svg += dot(at, colour, series.mark);
    }
  }
  if (points.empty()) return svg;
  return fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{} points=\"{}\"/>\n", colour,
                     series.mark == Mark::Dashes ? " stroke-dasharray=\"6 4\"" : "", points);
}

std::string legend(const Chart& chart, int index) {
  std::string svg;
  const double height = kLine * static_cast<double>(chart.series.size());
  const double top = chart.legend_below ? kHeight - kBottom - height : kTop + kLine / 2;
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const Series& series = chart.series[i];
    const char* colour = colour_of(series, i);
    const Point at = {index * kWidth + kLeft + 12, top + kLine * static_cast<double>(i)};
    svg += is_line(series.mark)
               ? stroke(at, {at.x + 24, at.y}, colour,
                        series.mark == Mark::Dashes ? " stroke-width=\"2\" stroke-dasharray=\"6 4\""
                                                    : " stroke-width=\"2\"")
               : dot({at.x + 12, at.y}, colour, series.mark);
    svg += text({at.x + 32, at.y + 4}, "start", series.name);
  }
  return svg;
}

}  // namespace

std::string place_text(const Chart& chart, int index, double x, double y) {
  const Point at = place(chart, index, x, y);
  return fmt::format("cx=\"{:.1f}\" cy=\"{:.1f}\"", at.x, at.y);
}

std::string svg_of(const std::vector<Chart>& charts) {
  const double width = kWidth * static_cast<double>(charts.size());
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:g}\" height=\"{1:g}\" viewBox=\"0 0 {0:g} "
      "{1:g}\" "
      "font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"{0:g}\" height=\"{1:g}\" "
      "fill=\"white\"/>\n",
      width, kHeight);
  for (size_t i = 0; i < charts.size(); ++i) {
    const Chart& chart = charts[i];
    const int index = static_cast<int>(i);
    svg += axes(chart, index);
    for (size_t s = 0; s < chart.series.size(); ++s)
      svg += curve(chart, index, chart.series[s], colour_of(chart.series[s], s));
    svg += legend(chart, index);
  }
  return svg + "</svg>\n";
}

}  // namespace tutti::chart

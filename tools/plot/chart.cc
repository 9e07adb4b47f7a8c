#include "tools/plot/chart.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>

#include <fmt/format.h>

#include "tools/plot/chart_scale.h"
#include "tools/plot/chart_text.h"

namespace tutti::chart {
namespace {

constexpr double kWidth = 480;  // of a chart with its labels
constexpr double kHeight = 320;
constexpr double kTop = 38;
constexpr double kBottom = 50;
constexpr double kMargin = 16;   // at least, beside a chart
constexpr double kLine = 20;     // of a legend
constexpr double kSample = 24;   // of a line in a legend
constexpr double kEntryGap = 8;  // between the sample and its name
constexpr double kLineWidth = 1.5;
constexpr size_t kChartsInARow = 2;

int colour_in(const Chart& chart, size_t series) {
  const int colour = chart.series[series].colour;
  return colour == kNextColour ? static_cast<int>(series) : colour;
}

bool is_line(Mark mark) { return mark == Mark::Line || mark == Mark::Dashes || mark == Mark::Dotted; }

const char* dashes_of(Mark mark) {
  if (mark == Mark::Dashes) return R"( stroke-dasharray="7 4")";
  return mark == Mark::Dotted ? R"( stroke-dasharray="2 4")" : "";
}

class Drawing {
 public:
  template <class... Values>
  void add(fmt::format_string<Values...> format, Values&&... values) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Values>(values)...);
  }
  // `text` is escaped.
  void label(double x, double y, const char* anchor, const std::string& text) {
    add("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, text);
  }
  // `title`, which is escaped, is shown under the pointer.
  void mark(double x, double y, Mark mark, const std::string& colour, const std::string& title) {
    if (mark == Mark::Diamonds) {
      add("<path fill=\"{}\" d=\"M{:.1f} {:.1f}l4.5 4.5l-4.5 4.5l-4.5 -4.5z\">", colour, x, y - 4.5);
      add("<title>{}</title></path>\n", title);
      return;
    }
    if (mark == Mark::Rings)
      add("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"none\" stroke-width=\"2\" stroke=\"{}\">", x, y,
          colour);
    else
      add("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"{}\">", x, y, is_line(mark) ? 3 : 4, colour);
    add("<title>{}</title></circle>\n", title);
  }
  // One entry of a legend, whose sample begins at x. `name` is escaped.
  void entry(double x, double y, Mark of, const std::string& colour, const std::string& name) {
    if (is_line(of))
      add("<path class=\"curve\" stroke=\"{}\"{} d=\"M{:.1f} {:.1f}h{}\"/>\n", colour, dashes_of(of), x, y,
          kSample);
    else
      mark(x + kSample / 2, y, of, colour, name);
    label(x + kSample + kEntryGap, y + 4, "start", name);
  }
  std::string& text() { return text_; }

 private:
  std::string text_;
};

std::vector<double> values_of(const Chart& chart, double Point::*coordinate) {
  std::vector<double> values;
  for (const Series& series : chart.series) {
    for (const Point& point : series.points) values.push_back(point.*coordinate);
  }
  return values;
}

double widest(const std::vector<Scale::Tick>& ticks) {
  double width = 0;
  for (const Scale::Tick& tick : ticks) width = std::max(width, width_of(tick.text));
  return width;
}

// A chart at its place on the page.
class ChartDrawing {
 public:
  ChartDrawing(const Chart& chart, double left, double top, Drawing& to)
      : chart_(chart),
        to_(to),
        x_(chart.x, values_of(chart, &Point::x)),
        y_(chart.y, values_of(chart, &Point::y)),
        outer_left_(left),
        left_(left + kMargin + (chart.y.label.empty() ? 0 : kLine) + 8 + widest(y_.ticks())),
        right_(left + kWidth - std::max(kMargin, widest(x_.ticks()) / 2)),
        top_(top + kTop),
        bottom_(top + kHeight - kBottom) {}

  void draw() {
    add_axes();
    for (size_t i = 0; i < chart_.series.size(); ++i)
      add_series(chart_.series[i], colour_of(colour_in(chart_, i)), width_of_line(i));
    if (chart_.legend != Legend::None) add_legend();
  }

 private:
  bool can_show(const Point& point) const { return x_.can_show(point.x) && y_.can_show(point.y); }
  double at_x(double value) const { return left_ + x_.share(value) * (right_ - left_); }
  double at_y(double value) const { return bottom_ - y_.share(value) * (bottom_ - top_); }

  void add_axes() {
    for (const Scale::Tick& tick : y_.ticks()) {
      const double y = at_y(tick.value);
      to_.add("<path class=\"grid\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>\n", left_, y, right_);
      to_.label(left_ - 6, y + 4, "end", tick.text);
    }
    for (const Scale::Tick& tick : x_.ticks()) {
      const double x = at_x(tick.value);
      to_.add("<path class=\"axis\" d=\"M{:.1f} {:.1f}v4\"/>\n", x, bottom_);
      to_.label(x, bottom_ + 18, "middle", tick.text);
    }
    to_.add("<path class=\"axis\" d=\"M{:.1f} {:.1f}V{:.1f}H{:.1f}\"/>\n", left_, top_, bottom_, right_);
    const double width = right_ - left_;
    to_.label(left_ + width / 2, bottom_ + 38, "middle", fitted(chart_.x.label, width));
    add_title(width);
    if (chart_.y.label.empty()) return;
    const double middle = (top_ + bottom_) / 2;
    to_.add("<text transform=\"translate({:.1f} {:.1f})rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
            outer_left_ + kMargin, middle, fitted(chart_.y.label, bottom_ - top_));
  }

  void add_title(double width) {
    constexpr double kBold = 1.1;  // the width of bold letters relative to others
    const double room = std::max(0.0, width - width_of(chart_.note) - kMargin);
    to_.add("<text class=\"title\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", left_, top_ - 16,
            fitted(chart_.title, room / kBold));
    if (!chart_.note.empty()) to_.label(right_, top_ - 16, "end", fitted(chart_.note, width));
  }

  // Keeps only the least and the greatest of the points in each column of pixels.
  std::vector<Point> thinned(const std::vector<Point>& points) const {
    std::vector<Point> kept;
    for (auto begin = points.begin(); begin != points.end();) {
      const double column = std::floor(at_x(begin->x));
      const auto end = std::find_if(begin, points.end(),
                                    [&](const Point& point) { return std::floor(at_x(point.x)) != column; });
      const auto [least, greatest] =
          std::minmax_element(begin, end, [](const Point& a, const Point& b) { return a.y < b.y; });
      kept.push_back(*std::min(least, greatest));
      if (least->y < greatest->y) kept.push_back(*std::max(least, greatest));
      begin = end;
    }
    return kept;
  }

  bool lie_on_each_other(const Series& one, const Series& other) const {
    constexpr double kPixels = 0.25;
    const auto near = [&](const Point& a, const Point& b) {
      const bool shown = can_show(a);
      if (!shown || !can_show(b)) return shown == can_show(b);
      return std::abs(at_x(a.x) - at_x(b.x)) <= kPixels && std::abs(at_y(a.y) - at_y(b.y)) <= kPixels;
    };
    return std::equal(one.points.begin(), one.points.end(), other.points.begin(), other.points.end(), near);
  }

  // The line is wider, the more later lines lie on it.
  double width_of_line(size_t index) const {
    constexpr double kEach = 3;
    constexpr ptrdiff_t kMost = 3;
    const auto begin = chart_.series.begin() + static_cast<ptrdiff_t>(index);
    const auto same = std::count_if(begin + 1, chart_.series.end(), [&](const Series& later) {
      return is_line(later.mark) && lie_on_each_other(*begin, later);
    });
    return kLineWidth + kEach * static_cast<double>(std::min(same, kMost));
  }

  void add_points(const Series& series, const std::vector<Point>& all, const std::string& colour,
                  double width) {
    const std::vector<Point> points = thinned(all);
    if (!is_line(series.mark) || points.size() == 1) {
      for (const Point& point : points)
        to_.mark(at_x(point.x), at_y(point.y), series.mark, colour, escaped(series.name));
      return;
    }
    to_.add("<path class=\"curve\" stroke=\"{}\"{}", colour, dashes_of(series.mark));
    if (width > kLineWidth) to_.add(" style=\"stroke-width:{:g}\"", width);
    to_.add(" d=\"");
    const char* command = "M";
    for (const Point& point : points) {
      to_.add("{}{:.1f} {:.1f}", command, at_x(point.x), at_y(point.y));
      command = "L";
    }
    to_.add("\"><title>{}</title></path>\n", escaped(series.name));
  }

  void add_series(const Series& series, const std::string& colour, double width) {
    std::vector<Point> connected;
    std::optional<double> marked;  // the last column with a mark
    const auto finish = [&] {
      if (!connected.empty()) add_points(series, connected, colour, width);
      connected.clear();
    };
    for (const Point& point : series.points) {
      if (can_show(point)) {
        connected.push_back(point);
        continue;
      }
      finish();
      const double x = x_.can_show(point.x) ? at_x(point.x) : left_;
      if (marked == std::floor(x)) continue;
      marked = std::floor(x);
      to_.add(
          "<path class=\"curve\" stroke=\"{}\" d=\"M{:.1f} {:.1f}l6 6m0 -6l-6 6\">"
          "<title>{}: {:g} at {:g}</title></path>\n",
          colour, x - 3, top_, escaped(series.name), point.y, point.x);
    }
    finish();
  }

  void add_legend() {
    constexpr double kIndent = 12;
    const double room = right_ - left_ - kIndent - kSample - kEntryGap;
    double widest = 0;
    for (const Series& series : chart_.series) widest = std::max(widest, width_of(series.name));
    const double x = chart_.legend == Legend::UpperRight
                         ? right_ - std::min(widest, room) - kEntryGap - kSample
                         : left_ + kIndent;
    const auto count = static_cast<double>(chart_.series.size());
    double y = chart_.legend == Legend::LowerLeft ? bottom_ - kLine * count : top_ + kLine / 2;
    for (size_t i = 0; i < chart_.series.size(); ++i, y += kLine) {
      const Series& series = chart_.series[i];
      to_.entry(x, y, series.mark, colour_of(colour_in(chart_, i)), fitted(series.name, room));
    }
  }

  const Chart& chart_;
  Drawing& to_;
  const Scale x_;
  const Scale y_;
  const double outer_left_;
  const double left_;
  const double right_;
  const double top_;
  const double bottom_;
};

// Draws the names in columns, and returns the height.
double add_names(const std::vector<std::string>& names, double width, Drawing& to) {
  double widest = 1;
  for (const std::string& name : names) widest = std::max(widest, width_of(name));
  const double room = width - 2 * kMargin;
  const double entry = std::min(room, kSample + 3 * kEntryGap + widest);
  const auto columns = static_cast<size_t>(std::floor(room / entry));
  const size_t rows = (names.size() + columns - 1) / columns;
  for (size_t i = 0; i < names.size(); ++i) {
    const size_t column = i / rows;
    const double x = kMargin + entry * static_cast<double>(column);
    const double y = kLine * (0.9 + static_cast<double>(i % rows));
    to.entry(x, y, Mark::Line, colour_of(static_cast<int>(i)),
             fitted(names[i], entry - kSample - 2 * kEntryGap));
  }
  return names.empty() ? 0 : kLine * static_cast<double>(rows) + kMargin / 2;
}

}  // namespace

std::string svg_of(const std::vector<Chart>& charts, const std::vector<std::string>& names) {
  const double width = kWidth * static_cast<double>(std::clamp<size_t>(charts.size(), 1, kChartsInARow));
  Drawing drawing;
  const double head = add_names(names, width, drawing);
  for (size_t i = 0; i < charts.size(); ++i) {
    const double left = kWidth * static_cast<double>(i % kChartsInARow);
    const size_t row = i / kChartsInARow;
    const double top = head + kHeight * static_cast<double>(row);
    ChartDrawing(charts[i], left, top, drawing).draw();
  }
  const size_t rows = (charts.size() + kChartsInARow - 1) / kChartsInARow;
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\">\n"
      "<style>text{{font:12px system-ui,sans-serif;fill:{2}}}.title{{font-weight:bold}}"
      ".grid{{stroke:{2};stroke-opacity:.25}}.axis{{stroke:{2};fill:none}}"
      ".curve{{fill:none;stroke-width:{3};stroke-linejoin:round}}</style>\n{4}</svg>\n",
      width, head + kHeight * static_cast<double>(rows), kInk, kLineWidth, drawing.text());
}

std::string page_of(const std::string& svg, std::string_view title) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width\">\n<title>{}</title>\n<style>:root{{color-scheme:light dark}}"
      "svg{{max-width:100%;height:auto}}</style>\n{}</html>\n",
      escaped(title), svg);
}

}  // namespace tutti::chart

#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::chart {

// Charts as SVG. A drawing consists only of paths, circles and text, and loads nothing from elsewhere. All
// colours can be read on white and on black, so the background of the page is kept.

struct Point {
  double x = 0;
  double y = 0;
  bool operator==(const Point&) const = default;
};

struct Axis {
  std::string label = "";
  // The ends of the axis. Points beyond an end are placed at that end. If unset: round numbers around all
  // points. Ends that are the same, or nearly so, are moved apart.
  std::optional<double> least = {};
  std::optional<double> most = {};
  bool logarithmic = false;
  std::vector<double> ticks = {};  // the numbers that are labelled; if empty: round numbers
};

enum class Mark { Line, Dashes, Dotted, Dots, Rings, Diamonds };

inline constexpr int kNextColour = -1;  // the index of the series in its chart
inline constexpr int kGrey = -2;

struct Series {
  std::string name = "";  // in the legend of the chart, and shown by browsers under the pointer
  Mark mark = Mark::Line;
  // In ascending order of x. A point that the axes cannot show (not finite, or not above 0 on a logarithmic
  // axis) interrupts the line, and a cross marks it at the upper edge of the chart.
  std::vector<Point> points = {};
  int colour = kNextColour;  // an index
};

enum class Legend { None, LowerLeft, UpperLeft, UpperRight };

struct Chart {
  std::string title = "";
  std::string note = "";  // beside the title
  Axis x = {};
  Axis y = {};
  std::vector<Series> series = {};
  Legend legend = Legend::LowerLeft;  // in this corner of the chart
};

// Returns a drawing of the charts, two in a row. `names` is a legend above them, with the names of the
// colours 0, 1 and so on. Of lines with more points than the chart has columns, the least and the greatest
// value of each column are drawn. If lines lie on each other everywhere, an earlier line is wider, so that it
// can be seen below the later ones. Names that are too long are shortened.
std::string svg_of(const std::vector<Chart>& charts, const std::vector<std::string>& names = {});

// Returns an HTML page with the drawing.
std::string page_of(const std::string& svg, std::string_view title);

}  // namespace tutti::chart

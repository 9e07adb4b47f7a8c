#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tutti::chart {

// A picture of some curves, small enough to be written by hand: SVG with nothing in it but lines, dots and
// text.

struct Axis {
  std::string label;
  double least = 0;
  double most = 1;
  bool logarithmic = false;        // to the base 2
  std::vector<double> ticks = {};  // where there is a number
};

enum class Mark { Line, Dashes, Dots, Rings };

struct Series {
  std::string name;
  Mark mark = Mark::Line;
  std::vector<std::pair<double, double>> points;
  int colour = -1;  // one of five; by itself the next
};

struct Chart {
  std::string title;
  Axis x;
  Axis y;
  std::vector<Series> series;
  bool legend_below = true;  // in the lower left corner, else in the upper left
};

// The charts, one beside the other.
std::string svg_of(const std::vector<Chart>& charts);

// Where a point of the chart at `index` in that row is put: 'cx="1.0" cy="2.0"'. What lies beyond an axis is
// put at its end.
std::string place_text(const Chart& chart, int index, double x, double y);

}  // namespace tutti::chart

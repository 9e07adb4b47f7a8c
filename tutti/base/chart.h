#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tutti::chart {

// Simple line charts as SVG. The picture consists only of lines, dots and text, so that its source is short
// and readable.

struct Axis {
  std::string label;
  double least = 0;
  double most = 1;
  bool logarithmic = false;        // to base 2
  std::vector<double> ticks = {};  // the positions that are labelled
};

enum class Mark { Line, Dashes, Dots, Rings };

struct Series {
  std::string name;
  Mark mark = Mark::Line;
  std::vector<std::pair<double, double>> points;
  int colour = -1;  // index of one of five colours; -1: the next one
};

struct Chart {
  std::string title;
  Axis x;
  Axis y;
  std::vector<Series> series;
  bool legend_below = true;  // in the lower left corner; if false, in the upper left
};

// Returns an SVG picture of the charts, placed side by side.
std::string svg_of(const std::vector<Chart>& charts);

// Returns the SVG position of a point in the chart at `index` of that row: 'cx="1.0" cy="2.0"'. A point
// beyond the end of an axis is placed at that end.
std::string place_text(const Chart& chart, int index, double x, double y);

}  // namespace tutti::chart

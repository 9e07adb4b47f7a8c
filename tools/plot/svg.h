#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/plot/plotted_run.h"

// Drawings as SVG, with nothing loaded from elsewhere. All colours can be read on white and on black, so the
// background stays that of the page.
namespace tutti::plot {

enum class Line { Solid, Dashed, Dotted };

struct Curve {
  std::string name;
  size_t colour = 0;  // an index; curves of the same run have the same
  Line line = Line::Solid;
  std::vector<Point> points = {};  // in ascending order of x; those that are not finite leave a gap
};

struct Chart {
  std::string title;
  std::string x_label;
  std::vector<Curve> curves = {};
};

// An entry of the legend above the charts.
struct LegendEntry {
  std::string name;
  size_t colour = 0;
};

// Returns the charts, two in a row. Curves with more points than a chart is wide become the least and the
// greatest value of each column. Values that are not finite are marked at the upper edge of the chart.
std::string draw(const std::vector<Chart>& charts, const std::vector<LegendEntry>& legend);

// Returns a page with the drawing.
std::string page(const std::string& svg, std::string_view title);

// Returns the text for XML: with entities, and U+FFFD for what XML cannot contain.
std::string escaped(std::string_view text);

// Returns the least and greatest of some round numbers in equal distances, about `count`, which span the
// range. All are finite, and the distance is not 0.
struct Axis {
  double begin = 0;
  double end = 1;
  double step = 1;
};
Axis axis_of(double least, double greatest, int count);

}  // namespace tutti::plot

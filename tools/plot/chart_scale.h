#pragma once

#include <string>
#include <vector>

#include "tools/plot/chart.h"

namespace tutti::chart {

// The numbers along an axis. Both ends are finite, and least < most.
class Scale {
 public:
  struct Tick {
    double value = 0;
    std::string text = "";
  };

  // `values` are the values of all points. Values that cannot be shown are ignored.
  Scale(const Axis& axis, const std::vector<double>& values);

  double least() const { return least_; }
  double most() const { return most_; }
  const std::vector<Tick>& ticks() const { return ticks_; }

  // Returns true if the value is finite and, on a logarithmic axis, above 0.
  bool can_show(double value) const;
  // Returns the place of a value that can be shown: 0 at the least number, 1 at the greatest.
  double share(double value) const;

 private:
  void choose_linear();
  void choose_logarithmic();

  const Axis axis_;
  double least_ = 0;
  double most_ = 1;
  std::vector<Tick> ticks_;
};

}  // namespace tutti::chart

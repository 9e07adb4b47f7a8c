#pragma once

#include <string>
#include <vector>

// Files with the losses of a run, one per line, and the comparison of two runs.
namespace example {

void write_curve(const std::string& path, const std::vector<double>& losses);
std::vector<double> read_curve(const std::string& path);

// Returns a text such as "the curves are the same in all 600 steps".
std::string compare(const std::vector<double>& ours, const std::vector<double>& theirs);
// Draws the losses of both runs and, if there are any, the values of the network at as many even steps of x
// from -1 to 1.
void draw(const std::string& path, const std::vector<double>& ours, const std::vector<double>& theirs,
          const std::vector<double>& fitted);

}  // namespace example

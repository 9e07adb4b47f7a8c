#pragma once

#include <string>
#include <vector>

// Files with the losses of a run, one per line, and the comparison of two runs.
namespace example {

void write_curve(const std::string& path, const std::vector<double>& losses);
std::vector<double> read_curve(const std::string& path);

// Returns a text such as "the curves are the same in all 600 steps".
std::string compare(const std::vector<double>& ours, const std::vector<double>& theirs);
void draw(const std::string& path, const std::vector<double>& ours, const std::vector<double>& theirs);

}  // namespace example

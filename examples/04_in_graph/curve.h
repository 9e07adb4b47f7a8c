#pragma once

#include <string>
#include <vector>

// The losses of a run, a line each, and how those of two runs look beside each other.
namespace example {

void write_curve(const std::string& path, const std::vector<double>& losses);
std::vector<double> read_curve(const std::string& path);

// "the curves are the same in all 600 steps".
std::string compare(const std::vector<double>& ours, const std::vector<double>& theirs);
void draw(const std::string& path, const std::vector<double>& ours, const std::vector<double>& theirs);

}  // namespace example

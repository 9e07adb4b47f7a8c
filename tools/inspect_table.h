#pragma once

#include <string>

namespace tutti {

// Prints a summary of a table: its columns, their contents, the number of missing values, and the ranges of
// the numbers. Returns the exit code.
int inspect_table(const std::string& path, const std::string& id);

}  // namespace tutti

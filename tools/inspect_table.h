#pragma once

#include <string>

#include "tutti/data/tables/schema.h"

namespace tutti {

// Prints a summary of a table: its columns, their contents, the number of missing values, and the ranges of
// the numbers. Returns the exit code.
int inspect_table(const std::string& path, const data::TextFormat& format);

}  // namespace tutti

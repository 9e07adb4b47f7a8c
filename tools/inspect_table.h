#pragma once

#include <string>

namespace tutti {

// Prints a table of text: its columns, what is in them, how much is missing, and from where to where the
// numbers go. Returns the exit code.
int inspect_table(const std::string& path, const std::string& id);

}  // namespace tutti

#pragma once

#include <string>

namespace tutti {

// Returns the folder of an exported model: `path` itself, or the newest version in it; "" if it is neither.
std::string export_at(const std::string& path);

// Prints the signature of an exported model, how it was checked, and its weights. Returns the exit code.
int inspect_export(const std::string& folder);

}  // namespace tutti

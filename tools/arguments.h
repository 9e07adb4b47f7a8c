#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace tutti {

// Parses with CLI11. Returns true if the command should continue, and false if --help was given and has been
// printed. Invalid arguments are an InvalidArgument that suggests the nearest flag.
[[nodiscard]] bool parse_arguments(CLI::App& app, const std::vector<std::string>& arguments);

}  // namespace tutti

#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace tutti {

// Parses with CLI11. Returns true if the command should continue, and false if --help was given and has been
// printed. Invalid arguments are an InvalidArgument that suggests the nearest flag.
[[nodiscard]] bool parse_arguments(CLI::App& app, const std::vector<std::string>& arguments);

// Returns the names of all flags: "--help", "-n".
std::vector<std::string> flags_of(const CLI::App& app);

}  // namespace tutti

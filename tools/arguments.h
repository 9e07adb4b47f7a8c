#pragma once

#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace tutti {

// Parses with CLI11. True where the command should go on, false where --help was asked for and has been
// printed. What does not fit is an InvalidArgument that suggests the nearest flag.
[[nodiscard]] bool parse_arguments(CLI::App& app, const std::vector<std::string>& arguments);

// The whole of main(): the exit code of `work`, or what the Error that left it means, after its text went to
// stderr.
int run_guarded(int argc, char** argv,
                const std::function<int(const std::vector<std::string>& arguments)>& work);

}  // namespace tutti

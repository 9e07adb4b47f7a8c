#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "tutti/base/config.h"
#include "tutti/base/environment.h"

namespace tutti {

// Parses with CLI11. Returns true if the command should continue, and false if --help was given and has been
// printed. Invalid arguments are an InvalidArgument that suggests the nearest flag.
[[nodiscard]] bool parse_arguments(CLI::App& app, const std::vector<std::string>& arguments);

// Returns the names of all flags: "--help", "-n".
std::vector<std::string> flags_of(const CLI::App& app);

// Says which folders in this one, which is not the folder of a run, are: those of trainings with names.
// Returns "" if none is.
std::string runs_below(const std::string& folder, const std::function<bool(const std::string&)>& is_run);

// Parses the arguments of a command that does not train but connects as training does. Returns the text of
// --help if it was given; otherwise fills the flags and returns nullopt. The variables of all training flags
// are accepted, so that they do not have to be unset. The command line may have only the flags that say how
// tasks are connected, and the flags that `add_own` adds.
std::optional<std::string> parse_connection_arguments(const char* name, const char* about,
                                                      const std::vector<std::string>& arguments,
                                                      const Environment& environment, RunConfig& config,
                                                      const std::function<void(FlagSet&)>& add_own = {});

}  // namespace tutti

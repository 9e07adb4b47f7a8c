#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/environment.h"
#include "tutti/base/flags.h"

namespace tutti {

// The arguments of a command that trains nothing but connects as training does. Returns the text of --help,
// or nothing, and fills the flags. Whoever has set variables for training need not unset them: all of its
// flags are known there, but only those that say how tasks are connected, and what `add_own` adds, belong on
// this command line.
std::optional<std::string> parse_connection_arguments(const char* name, const char* about,
                                                      const std::vector<std::string>& arguments,
                                                      const Environment& environment, Flags& flags,
                                                      const std::function<void(FlagSet&)>& add_own = {});

}  // namespace tutti

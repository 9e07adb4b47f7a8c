#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/config.h"
#include "tutti/base/environment.h"

namespace tutti {

// Parses the arguments of a command that does not train but connects as training does. Returns the text of
// --help if it was given; otherwise fills the flags and returns nullopt. The variables of all training flags
// are accepted, so that they do not have to be unset. The command line may have only the flags that say how
// tasks are connected, and the flags that `add_own` adds.
std::optional<std::string> parse_connection_arguments(const char* name, const char* about,
                                                      const std::vector<std::string>& arguments,
                                                      const Environment& environment, RunConfig& config,
                                                      const std::function<void(FlagSet&)>& add_own = {});

}  // namespace tutti

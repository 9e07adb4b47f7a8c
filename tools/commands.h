#pragma once

#include <string>
#include <vector>

#include "tutti/base/environment.h"

namespace tutti {

// The subcommands of `tutti`, one file each. Each gets the arguments after its name; returns the exit code.
using CommandFunction = int(const std::vector<std::string>& arguments, const Environment& environment);

CommandFunction run_command;
CommandFunction host_command;  // for run_command on another host; not listed
CommandFunction plot_command;
CommandFunction scale_command;
CommandFunction sweep_command;
CommandFunction timeline_command;
CommandFunction version_command;

// These need LibTorch, which takes a second to load, and are in a separate program next to `tutti`.
CommandFunction inspect_command;
CommandFunction status_command;
CommandFunction diff_command;
CommandFunction doctor_command;
CommandFunction bench_command;
CommandFunction serve_command;
CommandFunction stop_command;
CommandFunction shard_command;
CommandFunction export_command;

}  // namespace tutti

#pragma once

#include <functional>
#include <string>

#include "tutti/base/flags.h"
#include "tutti/cluster/context.h"

namespace tutti {

// What a program says of itself before its flags are read.
struct Program {
  std::string about = "Trains a model with Tutti.";  // the first lines of --help
  Flags defaults = {};
  std::function<void(FlagSet&)> add_flags;  // flags of its own; the values they fill outlive run()
};

// The whole of a main(): reads flags and environment, finds out which task this is, and calls `body` with the
// Context; a task in a job of parameter servers serves instead. An error ends as one readable line on stderr
// and as the exit code of its kind (docs/operations.md). Returns the exit code.
int run(int argc, char** argv, const std::function<void(Context&)>& body);
int run(int argc, char** argv, const Program& program, const std::function<void(Context&)>& body);

}  // namespace tutti

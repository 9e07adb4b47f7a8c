#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tutti/base/config.h"
#include "tutti/cluster/context.h"
#include "tutti/params/optimizer_options.h"

namespace tutti {

// The description and the flags of a program, set before its flags are read.
struct Program {
  std::string about = "Trains a model with Tutti.";  // the first lines of --help
  RunConfig defaults = {};
  std::function<void(FlagSet&)>
      add_flags;  // adds the program's own flags; their variables must outlive run()
  // Returns the optimisers of one's own that the program uses, for its parameter servers. Called after the
  // flags are read.
  std::function<std::vector<ElementwiseOptimizer>()> optimizers;
};

// The complete body of a main(): reads flags and environment, determines which task this is, and calls `body`
// with the Context; a task in a job of parameter servers runs a server instead. Reports an exception as one
// line on stderr and returns the exit code of its kind (docs/operations.md), or 0.
int run(int argc, char** argv, const std::function<void(Context&)>& body);
int run(int argc, char** argv, const Program& program, const std::function<void(Context&)>& body);

}  // namespace tutti

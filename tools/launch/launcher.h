#pragma once

#include <string>
#include <vector>

#include "tutti/base/environment.h"

namespace tutti {

struct LaunchOptions {
  int workers = 1;
  int restarts = 0;  // of the whole group, after a failure
};

// Runs `command` as the workers of one job on this machine and returns the exit code for this process: that
// of the first failure, or 0. Takes over the signals meanwhile. Nothing that was started is left when it
// returns; if this process is killed in between, a guardian sees to that.
int launch(const std::vector<std::string>& command, const Environment& environment,
           const LaunchOptions& options = {});

}  // namespace tutti

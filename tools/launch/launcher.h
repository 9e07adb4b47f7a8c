#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/environment.h"
#include "tutti/base/log.h"

namespace tutti {

struct LaunchOptions {
  std::optional<int> workers;  // of this machine; nothing: one per visible GPU, one where there is none
  int servers = 0;             // parameter servers beside the workers, on this machine alone
  bool master = false;         // another task, which drives the workers
  int restarts = 0;            // after a failure: of the whole group; with servers or a master, of the task
  std::chrono::milliseconds start_timeout{300'000};  // for the launchers of the other hosts to come
};

// Runs `command` as the workers of one job on this machine and returns the exit code for this process: that
// of the first failure, or 0. Where TF_CONFIG names hosts, a launcher is expected to run on each of them, and
// their workers are one job; a server or evaluator is one process. Takes over the signals meanwhile. Nothing
// that was started is left when it returns; if this process is killed in between, a guardian sees to that.
int launch(const std::vector<std::string>& command, const Environment& environment,
           const LaunchOptions& options = {});

// What the launcher itself says, at the level of TUTTI_LOG_LEVEL, where programs find theirs too.
Log launcher_log(const Environment& environment);

}  // namespace tutti

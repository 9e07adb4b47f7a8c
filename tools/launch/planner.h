#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/launch/group.h"
#include "tools/launch/hosts.h"
#include "tools/launch/launcher.h"
#include "tools/launch/signal_pipe.h"
#include "tutti/base/environment.h"
#include "tutti/base/log.h"

namespace tutti {

struct Plan {
  std::vector<TaskPlan> tasks;
  std::optional<int> signal;  // one that this process got instead
};

// Decides which tasks this launcher starts, and which GPU each of them sees.
class Planner {
 public:
  // Says in the log where workers and GPUs are not as many.
  Planner(const Environment& environment, const LaunchOptions& options, const Log& log);

  // Anew for every start: free ports on this machine, or a meeting with the launchers of the other hosts, by
  // when nobody's former tasks are left.
  Plan plan(SignalPipe& signals) const;

 private:
  // A server or an evaluator, which is one process and sees all GPUs that there are.
  bool stands_outside() const;
  int workers_here() const;
  Plan on_this_machine() const;
  Plan with_other_hosts(SignalPipe& signals) const;
  void give_gpu(size_t index, TaskPlan& task) const;
  void compare_numbers() const;

  const LaunchOptions options_;
  const Log& log_;
  const std::optional<Hosts> hosts_;
  const std::vector<std::string> gpus_;
};

}  // namespace tutti

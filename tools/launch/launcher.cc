#include "tools/launch/launcher.h"

#include <algorithm>
#include <signal.h>
#include <unistd.h>

#include <fmt/format.h>

#include "tools/launch/group.h"
#include "tools/launch/planner.h"

namespace tutti {

int launch(const std::vector<std::string>& command, const Environment& environment,
           const LaunchOptions& options) {
  const Log log = launcher_log(environment);
  const Planner planner(environment, options, log);
  SignalPipe signals({SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGCHLD});
  const JobMark mark;
  JobProcesses processes;
  Guardian guardian(mark, processes);
  for (int restart = 0;; ++restart) {
    Plan plan = planner.plan(signals);
    if (plan.signal) return 128 + *plan.signal;
    const bool one_by_one = std::any_of(plan.tasks.begin(), plan.tasks.end(), [](const TaskPlan& task) {
      return task.role == TaskRole::Server || task.role == TaskRole::Master;
    });
    const GroupOptions group{.restarts = one_by_one ? options.restarts : 0,
                             .evaluator_restarts = options.restarts};
    const JobWatch watch{mark, processes, guardian};
    const GroupResult result =
        TaskGroup(command, environment, std::move(plan.tasks), signals, watch, group).run();
    const bool may_restart = !result.interrupted && !result.left_behind && !one_by_one;
    if (result.exit_code == 0 || !may_restart || restart == options.restarts) return result.exit_code;
    Output err(STDERR_FILENO);
    err.add(fmt::format("tutti run: restart {} of {}\n", restart + 1, options.restarts));
    err.pass_on();
  }
}

Log launcher_log(const Environment& environment) {
  return Log(parse_log_level(environment.get("TUTTI_LOG_LEVEL").value_or("info")), "tutti run");
}

}  // namespace tutti

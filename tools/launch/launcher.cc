#include "tools/launch/launcher.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <fmt/format.h>

#include "tools/launch/group.h"

namespace tutti {

int launch(const std::vector<std::string>& command, const Environment& environment,
           const LaunchOptions& options) {
  // Grandchildren whose parent ends become ours, so that none is left as a zombie either.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  SignalPipe signals({SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGCHLD});
  const JobMark mark;
  const Guardian guardian(mark);
  GroupOptions group_options;
  group_options.workers = options.workers;
  for (int restart = 0;; ++restart) {
    const GroupResult result = Group(command, environment, group_options, signals, mark).run();
    if (result.exit_code == 0 || result.interrupted || restart == options.restarts) return result.exit_code;
    const std::string text = fmt::format("tutti run: restart {} of {}\n", restart + 1, options.restarts);
    write_all(STDERR_FILENO, text);
  }
}

}  // namespace tutti

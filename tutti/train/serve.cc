#include "tutti/train/serve.h"

#include <chrono>
#include <optional>
#include <string.h>

#include <fmt/format.h>

#include "tutti/cluster/roles.h"
#include "tutti/ps/server.h"
#include "tutti/train/passive/serve.h"
#include "tutti/train/session.h"
#include "tutti/train/stop_signals.h"

namespace tutti {

void serve(const Context& context) {
  if (!is_server_job(context.task().job)) {
    follow_master(context);
    return;
  }
  const StopSignals signals;
  ps::Server server(context);
  context.log().info("serving at {}", server.target());
  std::optional<int> signal;
  while (!server.join_for(std::chrono::milliseconds(100))) {
    if (signal || !signals.received()) continue;
    signal = signals.received();
    server.end();
    if (const int callers = server.callers(); callers > 0)
      context.log().info("{}: waiting for {} to leave; once more ends at once", strsignal(*signal), callers);
  }
  if (signal)
    throw Interrupted(*signal,
                      fmt::format("{} stopped by {}", context.task().short_name(), strsignal(*signal)));
  context.log().info("the job is done");
}

}  // namespace tutti

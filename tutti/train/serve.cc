#include "tutti/train/serve.h"

#include <chrono>
#include <optional>
#include <string.h>

#include <fmt/format.h>

#include "tutti/base/interrupted.h"
#include "tutti/cluster/roles.h"
#include "tutti/train/passive/serve.h"
#include "tutti/train/stop_signals.h"

namespace tutti {

Server::Server(const ClusterSpec& cluster, const std::string& job, int index, const Flags& flags)
    : Server(Context(flags, identity_in(cluster, {.job = job, .index = index}, "the program"))) {}

Server::Server(const Context& context) : context_(context), server_(context_) {
  context_.log().info("serving at {}", target());
}

void Server::join() {
  const StopSignals signals;
  std::optional<int> signal;
  while (!server_.join_for(std::chrono::milliseconds(100))) {
    if (signal || !signals.received()) continue;
    signal = signals.received();
    server_.end();
    if (const int callers = server_.callers(); callers > 0)
      context_.log().info("{}: waiting for {} to leave; once more ends at once", strsignal(*signal), callers);
  }
  if (signal)
    throw Interrupted(*signal,
                      fmt::format("{} stopped by {}", context_.task().short_name(), strsignal(*signal)));
  context_.log().info("the job is done");
}

void serve(const Context& context) {
  if (is_server_job(context.task().job)) {
    Server(context).join();
  } else {
    follow_master(context);
  }
}

}  // namespace tutti

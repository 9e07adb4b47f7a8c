#include "tutti/train/serve.h"

#include <chrono>
#include <csignal>
#include <optional>
#include <signal.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/interrupted.h"
#include "tutti/cluster/roles.h"
#include "tutti/ps/peers.h"
#include "tutti/train/passive/serve.h"
#include "tutti/train/stop_signals.h"

namespace tutti {
namespace {

volatile std::sig_atomic_t code_at_the_end = 0;  // static, since a signal handler can reach nothing else

// Ends the process with this code within half a minute, whatever its destructors wait for. This is the one
// exception to the rule that the library does not exit: only the tasks of run() and of `tutti serve` call
// this, and they have nothing left to do but to end.
void end_soon(int code) {
  constexpr unsigned kSeconds = 30;
  code_at_the_end = code;
  struct sigaction action {};
  action.sa_handler = [](int) { ::_exit(code_at_the_end); };
  sigaction(SIGALRM, &action, nullptr);
  alarm(kSeconds);
}

}  // namespace

Server::Server(const ClusterSpec& cluster, const std::string& job, int index, const RunConfig& config,
               std::vector<ElementwiseOptimizer> optimizers)
    : Server(Context(config, identity_in(cluster, {.job = job, .index = index}, "the program")),
             std::move(optimizers)) {}

Server::Server(const Context& context, std::vector<ElementwiseOptimizer> optimizers)
    : context_(context), server_(context_, std::move(optimizers)) {
  context_.log().info("serving at {}", target());
}

void Server::join() {
  using Clock = std::chrono::steady_clock;
  const StopSignals signals(context_.config());
  std::optional<int> signal;
  Clock::time_point deadline;
  while (!server_.join_for(std::chrono::milliseconds(100))) {
    if (signal && Clock::now() >= deadline) {
      context_.log().warning(
          "{} callers have not disconnected within {:g} s (--timeout); the server "
          "ends anyway",
          server_.callers(), context_.config().network.timeout);
      break;
    }
    if (signal || !signals.received()) continue;
    signal = signals.received();
    deadline = Clock::now() + milliseconds_of(context_.config().network.timeout);
    server_.end();
    if (const int callers = server_.callers(); callers > 0)
      context_.log().info(
          "{}: waiting for the callers to disconnect ({} left); a second signal ends the "
          "server at once",
          signal_name(*signal), callers);
  }
  if (signal)
    throw Interrupted(*signal,
                      fmt::format("{} stopped by {}", context_.task().short_name(), signal_name(*signal)));
  context_.log().info("the job is done");
}

// When the server is destroyed, gRPC may wait for a thread of its own that could not be started. So there is
// a deadline for the end, which needs no thread.
void serve(const Context& context, std::vector<ElementwiseOptimizer> optimizers) {
  if (is_server_job(context.task().job)) {
    Server server(context, std::move(optimizers));
    try {
      server.join();
      end_soon(0);
    } catch (const Interrupted& interrupted) {
      end_soon(interrupted.exit_code());
      throw;
    } catch (const Error& error) {
      end_soon(exit_code(error.kind()));
      throw;
    }
  } else {
    follow_master(context);
  }
}

}  // namespace tutti

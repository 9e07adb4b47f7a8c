#include "tutti/train/serve.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tools/commands.h"
#include "tools/connection_arguments.h"
#include "tutti/base/error.h"
#include "tutti/base/flags.h"
#include "tutti/cluster/context.h"
#include "tutti/cluster/roles.h"
#include "tutti/rpc/channel.h"

namespace tutti {
namespace {

constexpr const char* kAboutServe =
    "Is one parameter server, for any program: what the model is it hears from the chief. Ends with the "
    "job.\n"
    "  tutti serve --cluster_spec 'ps|h:2222,worker|h:2223;h:2224' --job_name ps --task_index 0";
constexpr const char* kAboutStop =
    "Ends the parameter servers of a cluster at once. What was not saved is lost.\n"
    "  tutti stop --cluster_spec 'ps|h:2222,worker|h:2223;h:2224'";

}  // namespace

int serve_command(const std::vector<std::string>& arguments, const Environment& environment) {
  Flags flags;
  if (const auto help =
          parse_connection_arguments("tutti serve", kAboutServe, arguments, environment, flags)) {
    fmt::print("{}", *help);
    return 0;
  }
  flags.device = "cpu";
  const Context context(flags, discover(flags, environment));
  if (!is_server_job(context.task().job)) {
    fail(ErrorKind::InvalidArgument, "tutti serve: {} is no server (found through {}): give --job_name ps",
         context.task().short_name(), context.identity().source);
  }
  at::set_num_threads(context.threads());
  serve(context);
  return 0;
}

int stop_command(const std::vector<std::string>& arguments, const Environment& environment) {
  Flags flags;
  if (const auto help = parse_connection_arguments("tutti stop", kAboutStop, arguments, environment, flags)) {
    fmt::print("{}", *help);
    return 0;
  }
  if (flags.cluster_spec.empty()) fail(ErrorKind::InvalidArgument, "tutti stop: which? Give --cluster_spec");
  const ClusterSpec cluster = ClusterSpec::parse(flags.cluster_spec);
  const auto timeout =
      std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(flags.timeout));
  int failures = 0;
  for (const Task& task : servers_of(cluster)) {
    const std::string& address = cluster.address(task.job, task.index);
    try {
      rpc::Channel channel(address, {.credentials = rpc::credentials_of(flags),
                                     .hello = {{"task", "tutti stop"}},
                                     .who = fmt::format("{} ({})", task.short_name(), address)});
      channel.connect(timeout);
      channel.call("stop", {}, {.timeout = timeout, .what = "to stop"});
      fmt::print("{} at {}: stopped\n", task.short_name(), address);
    } catch (const Error& error) {
      ++failures;
      fmt::print(stderr, "{}\n", error.what());
    }
  }
  return failures == 0 ? 0 : exit_code(ErrorKind::PeerLost);
}

}  // namespace tutti

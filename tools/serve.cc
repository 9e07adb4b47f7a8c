#include "tutti/train/serve.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tools/commands.h"
#include "tools/connection_arguments.h"
#include "tutti/base/error.h"
#include "tutti/base/flags.h"
#include "tutti/cluster/context.h"
#include "tutti/cluster/roles.h"
#include "tutti/ps/address_book.h"
#include "tutti/ps/peer.h"
#include "tutti/rpc/channel.h"
#include "tutti/train/threads.h"

namespace tutti {
namespace {

constexpr const char* kAboutServe =
    "Is one parameter server, for any program: what the model is it hears from the chief. In any other job "
    "it is a passive worker, which computes what a master asks for (--strategy in-graph). Ends with the "
    "job.\n"
    "  tutti serve --cluster_spec 'ps|h:2222,worker|h:2223;h:2224' --job_name ps --task_index 0\n"
    "  tutti serve --cluster_spec 'master|h:2222,worker|h:2223' --job_name worker --task_index 0 "
    "--allow-programs";
constexpr const char* kAboutStop =
    "Ends the servers of a cluster at once, or those of one job. What was not saved is lost.\n"
    "  tutti stop --cluster_spec 'ps|h:2222,worker|h:2223;h:2224'\n"
    "  tutti stop --cluster_spec 'master|h:2222,worker|h:2223' --job_name worker";

std::vector<Task> tasks_to_stop(const ClusterSpec& cluster, const std::string& job) {
  if (job.empty()) return servers_of(cluster);
  std::vector<Task> tasks;
  for (const int index : cluster.task_indices(job)) tasks.push_back({.job = job, .index = index});
  return tasks;
}

}  // namespace

int serve_command(const std::vector<std::string>& arguments, const Environment& environment) {
  Flags flags;
  if (const auto help =
          parse_connection_arguments("tutti serve", kAboutServe, arguments, environment, flags)) {
    fmt::print("{}", *help);
    return 0;
  }
  // Off the GPUs unless told.
  if (flags.device == "auto") flags.device = "cpu";
  const Context context(flags, discover(flags, environment));
  if (context.cluster().empty()) {
    fail(ErrorKind::InvalidArgument,
         "tutti serve: of which cluster? Give --cluster_spec, --job_name and --task_index");
  }
  set_threads(context.threads());
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
  const auto timeout = ps::milliseconds_of(flags.timeout);
  int failures = 0;
  for (const Task& task : tasks_to_stop(cluster, flags.job_name)) {
    try {
      rpc::ChannelOptions options{.credentials = rpc::credentials_of(flags),
                                  .hello = {{"task", "tutti stop"}}};
      const std::string address = ps::chooses_its_port(cluster, task)
                                      ? ps::find_address(cluster, task, options, timeout)
                                      : cluster.address(task.job, task.index);
      options.who = fmt::format("{} ({})", task.short_name(), address);
      rpc::Channel channel(address, options);
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

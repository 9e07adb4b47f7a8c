#include <algorithm>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "tools/arguments.h"
#include "tools/commands.h"
#include "tutti/base/config.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/this_host.h"
#include "tutti/cluster/context.h"
#include "tutti/cluster/roles.h"
#include "tutti/cluster/threads.h"
#include "tutti/ps/address_book.h"
#include "tutti/ps/peers.h"
#include "tutti/rpc/channel.h"
#include "tutti/train/run.h"

namespace tutti {
namespace {

constexpr const char* kAboutServe =
    "Runs one parameter server, for any program: the chief tells it which model to serve. With any other "
    "--job_name it is a passive worker, which computes what a master requests (--strategy in-graph). It "
    "ends with the job.\n"
    "  tutti serve --cluster_spec 'ps|h:2222,worker|h:2223;h:2224' --job_name ps --task_index 0\n"
    "  tutti serve --cluster_spec 'master|h:2222,worker|h:2223' --job_name worker --task_index 0 "
    "--allow-programs";
constexpr const char* kAboutStop =
    "Stops all servers of a cluster at once, or all tasks of one job, or a single task. Values that have not "
    "been saved are lost.\n"
    "  tutti stop --cluster_spec 'ps|h:2222,worker|h:2223;h:2224'\n"
    "  tutti stop --cluster_spec 'master|h:2222,worker|h:2223' --job_name worker";

constexpr std::chrono::seconds kPatience{5};

std::vector<Task> tasks_to_stop(const ClusterSpec& cluster, const RunConfig& config) {
  std::vector<Task> tasks;
  if (config.cluster.job.empty()) {
    tasks = servers_of(cluster);
  } else {
    for (const int index : cluster.task_indices(config.cluster.job))
      tasks.push_back({.job = config.cluster.job, .index = index});
  }
  if (tasks.empty())
    fail(ErrorKind::InvalidArgument,
         "tutti stop: the cluster has no servers, only the jobs {}; choose one with --job_name",
         fmt::join(cluster.jobs(), ", "));
  if (!config.cluster.task) return tasks;
  const Task only{.job = tasks.front().job, .index = static_cast<int>(*config.cluster.task)};
  static_cast<void>(cluster.address(only.job, only.index));  // throws if there is none
  return {only};
}

void stop_task(const ClusterSpec& cluster, const Task& task, rpc::ChannelOptions options,
               std::chrono::milliseconds timeout) {
  // A running server is found at once; if there is none, there is nothing to stop.
  const auto patience = std::min<std::chrono::milliseconds>(timeout, kPatience);
  const std::string address = ps::chooses_its_port(cluster, task)
                                  ? ps::find_address(cluster, task, options.credentials, patience)
                                  : cluster.address(task.job, task.index);
  options.who = fmt::format("{} ({})", task.short_name(), address);
  rpc::Channel channel(address, options);
  channel.connect(patience);
  channel.call("stop", {}, {.timeout = timeout, .what = "to stop"});
  fmt::print("{} at {}: stopped\n", task.short_name(), address);
}

}  // namespace

int serve_command(const std::vector<std::string>& arguments, const Environment& environment) {
  RunConfig config;
  if (const auto help =
          parse_connection_arguments("tutti serve", kAboutServe, arguments, environment, config)) {
    fmt::print("{}", *help);
    return 0;
  }
  // A server does not use a GPU unless --device requests it.
  if (config.compute.device == "auto") config.compute.device = "cpu";
  config.training.stop_on_signals = true;
  const Context context(config, discover(config, environment));
  if (context.cluster().empty()) {
    fail(ErrorKind::InvalidArgument,
         "tutti serve: give --cluster_spec, --job_name and --task_index, which say which task of the "
         "cluster this is");
  }
  set_threads(context.threads());
  serve(context);
  return 0;
}

int stop_command(const std::vector<std::string>& arguments, const Environment& environment) {
  RunConfig config;
  if (const auto help =
          parse_connection_arguments("tutti stop", kAboutStop, arguments, environment, config)) {
    fmt::print("{}", *help);
    return 0;
  }
  if (config.cluster.spec.empty())
    fail(ErrorKind::InvalidArgument, "tutti stop: give --cluster_spec, which names the servers to stop");
  const ClusterSpec cluster = ClusterSpec::parse(config.cluster.spec);
  const rpc::ChannelOptions options{
      .credentials = net::credentials_of(config),
      .hello = {{"task", "tutti stop"}, {"host", host_name()}, {"pid", ::getpid()}}};
  int code = 0;  // of the first task that could not be stopped
  for (const Task& task : tasks_to_stop(cluster, config)) {
    try {
      stop_task(cluster, task, options, milliseconds_of(config.network.timeout));
    } catch (const Error& error) {
      if (code == 0) code = exit_code(error.kind());
      fmt::print(stderr, "{}: {}\n", to_string(error.kind()), error.what());
    }
  }
  return code;
}

}  // namespace tutti

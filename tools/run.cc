#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/launch/host_link.h"
#include "tools/launch/host_slots.h"
#include "tools/launch/hosts.h"
#include "tools/launch/launcher.h"
#include "tools/launch/meeting.h"
#include "tools/launch/nodes.h"
#include "tools/launch/planner.h"
#include "tools/launch/signal_pipe.h"
#include "tools/launch/ssh.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/live_line.h"
#include "tutti/base/text.h"

namespace tutti {

namespace {

constexpr const char* kAbout =
    "Starts PROGRAM as the workers of one job and waits until they have ended. Each worker gets an equal\n"
    "share of the cores and, if there are GPUs, one of them. If a worker fails, the others are ended too;\n"
    "with --min M, they go on without a worker that is killed, as long as M are left, and `tutti scale`\n"
    "changes their number.\n"
    "  tutti run [-n WORKERS] [--min M [--max X]] [--ps P] [--evaluator] [--restarts K] -- PROGRAM "
    "[ARGUMENTS...]\n"
    "                                                                             on this machine\n"
    "  tutti run -H HOST:SLOTS,... [-n WORKERS] -- PROGRAM [ARGUMENTS...]         on several, by ssh\n"
    "  tutti run --nnodes N --node-rank R --rendezvous HOST:PORT [-n WORKERS] -- PROGRAM [ARGUMENTS...]\n"
    "                                                                             on each of N hosts\n"
    "  TF_CONFIG='{...}' tutti run [-n WORKERS] -- PROGRAM [ARGUMENTS...]         on each host that "
    "TF_CONFIG names\n"
    "  srun -N NODES --ntasks-per-node 1 tutti run -- PROGRAM [ARGUMENTS...]      on each host of a step\n"
    "Without -n there is one worker per visible GPU (CUDA_VISIBLE_DEVICES, NVIDIA_VISIBLE_DEVICES), and\n"
    "one worker if there is no GPU. If the ARGUMENTS contain --strategy in-graph, or TUTTI_STRATEGY is\n"
    "in-graph, a master is started as one more task.";

struct RunOptions {
  LaunchOptions launch;
  NodeFlags nodes;
  std::string ports;
  std::string preempt_signal;
  std::string hosts;
  std::string discover;
  double discover_every = 5;
  std::string rsh;
  std::string remote_tutti;
  std::string log = kLogAuto;
  std::vector<std::string> variables;
};

// CLI::Range would accept NaN in every range.
std::string require_seconds(const std::string& text) {
  const auto seconds = parse_double(text);
  if (seconds && *seconds > 0 && *seconds <= 1e6) return "";
  return fmt::format("'{}' is not a number above 0, at most 1000000", text);
}

void add_options(CLI::App& app, RunOptions& options) {
  app.add_option(
         "-n,--workers", options.launch.workers,
         "Number of workers on this machine, or in total with -H (default: one per visible GPU; with -H, "
         "one per slot)")
      ->check(CLI::Range(1, kMostWorkersOfAHost));
  app.add_option(
         "--ps", options.launch.servers,
         "Number of parameter servers to start besides the workers, on this machine or the first host "
         "(default: 0)")
      ->check(CLI::Range(0, kMostWorkersOfAHost));
  app.add_flag("--evaluator", options.launch.evaluator,
               "Start one more process, which evaluates the checkpoints during the training");
  app.add_option(
      "-H,--hosts", options.hosts,
      "Hosts and the number of workers on each, HOST:SLOTS,HOST:SLOTS,...; they are reached by ssh");
  app.add_option(
         "--discover", options.discover,
         "With --min and --max, in place of -H: shell command that prints the hosts that the job has now, "
         "HOST or HOST:SLOTS a line; it is run again and again")
      ->excludes("--hosts");
  app.add_option("--discover-every", options.discover_every,
                 "Seconds from the end of the command of --discover to its next run (default: 5)")
      ->check(CLI::Range(0.001, 1e6))
      ->needs("--discover");
  app.add_option("--nnodes", options.nodes.count,
                 "Number of hosts. `tutti run` is started on each of them, with the same flags except for "
                 "--node-rank (default: 1, or the number of tasks of srun)")
      ->check(CLI::Range(1, 100'000));
  app.add_option("--node-rank", options.nodes.rank,
                 "With --nnodes: which of the hosts this is, from 0 (default: JOB_COMPLETION_INDEX, which "
                 "Kubernetes sets in an indexed job, or 0)")
      ->check(CLI::Range(0, 99'999));
  app.add_option("--rendezvous", options.nodes.rendezvous,
                 "With --nnodes: HOST:PORT of the first host, where the launchers meet; or HOST:PORT,... of "
                 "all, so that with --min a host can come again after the first one was lost");
  app.add_option("--ports", options.ports,
                 "Ports for the tasks, FIRST-LAST, on each host (default: any that are free)");
  app.add_option("--rsh", options.rsh,
                 "With -H: command that is called in place of ssh, with its options (default: the variable "
                 "TUTTI_RSH, or ssh)");
  app.add_option("--remote-tutti", options.remote_tutti,
                 "With -H: path of tutti on the other hosts (default: the path of this one)");
  app.add_option(
         "-x", options.variables,
         "Environment variable for the workers, NAME or NAME=VALUE; may be repeated. With -H only these "
         "and TUTTI_* reach the other hosts")
      ->allow_extra_args(false);
  app.add_option("--log", options.log,
                 "In a terminal, a line that changes in place shows the progress (auto); or lines of the log "
                 "alone do (plain). The variable TUTTI_LOG does the same (default: auto)")
      ->check(CLI::IsMember({kLogAuto, kLogPlain}));
  app.add_option("--restarts", options.launch.restarts,
                 "How many times workers are restarted after a failure (default: 0)")
      ->check(CLI::Range(0, 1'000'000));
  app.add_option("--min", options.launch.min,
                 "Go on without workers that are killed, as long as this many are left; --restarts then "
                 "restarts the lost worker alone. With --ps for --strategy ps-sync (default: a lost worker "
                 "ends the job)")
      ->check(CLI::Range(1, kMostWorkersOfAHost));
  app.add_option(
         "--max", options.launch.max,
         "With --min: `tutti scale` may raise the number of workers to this one, on this machine or in "
         "total with -H. Each gets the share of the cores that it has then (default: the number at the "
         "start)")
      ->check(CLI::Range(1, kMostWorkersOfAHost));
  app.add_option(
      "--preempt-signal", options.preempt_signal,
      "Signal that announces the end of this machine, such as USR1: it does as SIGTERM does, and the "
      "launcher that has the list of the workers ends its own workers alone if those of other hosts "
      "are enough (default: none)");
  app.add_option_function<double>(
         "--start-timeout",
         [&options](double seconds) { options.launch.start_timeout = milliseconds_of(seconds); },
         "With -H, --nnodes or TF_CONFIG: seconds to wait for the other hosts (default: 300)")
      ->check(require_seconds);
  app.add_option_function<double>(
         "--grace", [&options](double seconds) { options.launch.grace = milliseconds_of(seconds); },
         "Seconds that the tasks have to save and end after a signal, before they are killed (default: 30)")
      ->check(require_seconds);
  app.add_flag("--insecure", options.launch.insecure,
               "With --nnodes or TF_CONFIG: meet the other hosts even without a secret (TUTTI_SECRET); "
               "passed on to the tasks "
               "as TUTTI_INSECURE");
  app.prefix_command();  // `--` may be left out if PROGRAM does not begin with '-'
}

// --insecure and TUTTI_INSECURE mean the same, here and for the tasks.
Environment with_insecure(const Environment& environment, RunOptions& options) {
  constexpr const char* kVariable = "TUTTI_INSECURE";
  std::map<std::string, std::string> variables = environment.variables();
  if (options.launch.insecure) variables[kVariable] = "true";
  if (parse_switch(environment.get(kVariable).value_or("")).value_or(false)) options.launch.insecure = true;
  return Environment(std::move(variables));
}

// The tasks send a line that changes in place to this process, which shows it.
Environment with_log(const Environment& environment, RunOptions& options) {
  std::map<std::string, std::string> variables = environment.variables();
  const std::string given = environment.get(kLogVariable).value_or(kLogAuto);
  options.launch.is_live = is_live(options.log == kLogAuto ? given : options.log);
  if (options.launch.is_live) variables[kLogVariable] = kLogLive;
  if (options.log == kLogPlain) variables[kLogVariable] = kLogPlain;
  return Environment(std::move(variables));
}

// Fills in launch.nodes. With --min, the hosts of a TF_CONFIG are nodes like others: their tasks do not read
// it. An evaluator has no part in the job of the others.
Environment fill_in_nodes(RunOptions& options, const Environment& environment) {
  const auto hosts = options.launch.min && !options.nodes.count ? JobHosts::from(environment) : std::nullopt;
  if (!hosts) {
    options.launch.nodes = find_nodes(options.nodes, environment);
    return environment;
  }
  if (!hosts->own_index()) {
    options.launch.min.reset();
    options.launch.max.reset();
    return environment;
  }
  options.launch.nodes = nodes_of(*hosts);
  std::map<std::string, std::string> variables = environment.variables();
  variables.erase("TF_CONFIG");
  return Environment(std::move(variables));
}

int run_on_hosts(const RunOptions& options, const std::vector<std::string>& command,
                 const ForwardedVariables& variables, const Environment& environment) {
  if (!environment.get("TF_CONFIG").value_or("").empty())
    fail(ErrorKind::InvalidArgument,
         "tutti run: -H and --discover cannot be combined with TF_CONFIG, which also names hosts; omit them, "
         "or unset "
         "TF_CONFIG");
  if (options.nodes.count.value_or(1) > 1)
    fail(ErrorKind::InvalidArgument,
         "tutti run: -H and --discover start the launchers of all hosts, so they cannot be combined with "
         "--nnodes; omit one "
         "of them");
  const std::string rsh = options.rsh.empty() ? environment.get(kRshVariable).value_or("") : options.rsh;
  const RemoteShell shell = RemoteShell::parse(rsh, options.remote_tutti);
  if (!options.discover.empty())
    return launch_on_discovered_hosts(options.discover, milliseconds_of(options.discover_every), command,
                                      variables, shell, options.launch);
  const int workers = options.launch.max.value_or(options.launch.workers.value_or(0));
  return launch_on_hosts(fill_slots(parse_hosts(options.hosts), workers), command, variables, shell,
                         options.launch);
}

}  // namespace

int run_command(const std::vector<std::string>& arguments, const Environment& environment) {
  CLI::App app(kAbout, "tutti run");
  RunOptions options;
  add_options(app, options);

  const auto dashes = std::find(arguments.begin(), arguments.end(), "--");
  if (!parse_arguments(app, {arguments.begin(), dashes})) return 0;
  std::vector<std::string> command = app.remaining();
  if (!command.empty() && command.front().starts_with('-')) {
    const std::string name = command.front().substr(0, command.front().find('='));
    fail(ErrorKind::InvalidArgument,
         "tutti run: there is no flag '{}'{}; put the program's flags after its name", name,
         did_you_mean(name, flags_of(app)));
  }
  // A `--` after the program's name belongs to the program.
  const auto rest = command.empty() && dashes != arguments.end() ? dashes + 1 : dashes;
  command.insert(command.end(), rest, arguments.end());
  if (command.empty()) {
    fail(ErrorKind::InvalidArgument, "tutti run: name the program to start, as in tutti run -n 2 -- ./mnist");
  }
  ForwardedVariables variables =
      forward_variables(options.variables, with_log(with_insecure(environment, options), options));
  if (app.count("--ports") > 0) options.launch.ports = parse_port_range(options.ports);
  if (app.count("--preempt-signal") > 0)
    options.launch.preempt_signal = parse_preempt_signal(options.preempt_signal);
  options.launch.master =
      flag_of_program(command, variables.environment, "--strategy", "TUTTI_STRATEGY") == "in-graph";
  if (app.count("--hosts") + app.count("--discover") > 0)
    return run_on_hosts(options, command, variables, environment);
  variables.environment = fill_in_nodes(options, variables.environment);
  return launch(command, variables.environment, options.launch);
}

int host_command(const std::vector<std::string>& arguments, const Environment& environment) {
  const auto tasks = !arguments.empty() && arguments.size() <= 2 ? parse_int(arguments[0]) : std::nullopt;
  if (!tasks || *tasks < 1 || *tasks > 4 * kMostWorkersOfAHost)
    fail(ErrorKind::InvalidArgument, "tutti {}: this command is for `tutti run -H` alone", kHostLauncher);
  const auto ports =
      arguments.size() == 2 ? std::optional(parse_port_range(arguments[1])) : std::optional<PortRange>();
  return launch_for_host(static_cast<int>(*tasks), ports, environment);
}

}  // namespace tutti

#include "tools/launch/launcher.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <poll.h>
#include <signal.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>

#include "tools/launch/discovery.h"
#include "tools/launch/gpus.h"
#include "tools/launch/group.h"
#include "tools/launch/host_link.h"
#include "tools/launch/host_slots.h"
#include "tools/launch/meeting.h"
#include "tools/launch/planner.h"
#include "tools/launch/restart_pause.h"
#include "tools/launch/ssh.h"
#include "tools/launch/survival_board.h"
#include "tools/launch/survival_guest.h"
#include "tools/launch/survival_keeper.h"
#include "tools/launch/survival_peer.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/live_line.h"
#include "tutti/base/log.h"
#include "tutti/base/net.h"
#include "tutti/base/ports.h"
#include "tutti/base/secret.h"
#include "tutti/base/text.h"
#include "tutti/base/version.h"
#include "tutti/cluster/identity.h"
#include "tutti/train/stop_signals.h"
#include "tutti/transport/members.h"

namespace tutti {
namespace {

// Everything that a launcher needs to watch its processes.
struct Watching {
  explicit Watching(int preempt) : signals({SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGCHLD}, preempt) {}
  SignalPipe signals;
  JobWatch watch;
};

// Waits for the reader.
void print(int stream, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = write(stream, text.data(), text.size());
    if (count < 0 && errno != EINTR) return;
    if (count > 0) text.remove_prefix(static_cast<size_t>(count));
  }
}

constexpr std::chrono::milliseconds kBeforeComingAgain{500};

GroupResult ended_by(int signal) { return {.exit_code = 128 + signal, .interrupted = true}; }

// Runs a job, and again after a failure, up to `restarts` times. The argument of `run` is the number of
// restarts before. That a launcher comes again which the others had not taken in is no restart.
int run_with_restarts(int restarts, SignalPipe& signals, const std::function<GroupResult(int)>& run) {
  RestartPause pauses;
  for (int before = 0;; ++before) {
    const auto begin = std::chrono::steady_clock::now();
    const GroupResult result = run(before);
    before += result.restarts;
    const bool may_restart = !result.interrupted && !result.left_behind && !result.refused;
    if (may_restart && result.comes_again) {
      if (const auto signal = await_signal(signals, std::chrono::steady_clock::now() + kBeforeComingAgain))
        return ended_by(*signal).exit_code;
      --before;
      continue;
    }
    if (result.exit_code == 0 && result.lost_output) return exit_code(ErrorKind::Overloaded);
    if (result.exit_code == 0 || !may_restart || before >= restarts) return result.exit_code;
    const std::chrono::seconds pause = pauses.next(std::chrono::steady_clock::now() - begin);
    print(STDERR_FILENO, fmt::format("{} tutti run: restart {} of {}{}\n", time_of_day(), before + 1,
                                     restarts, describe_pause(pause)));
    if (const auto signal = await_signal(signals, std::chrono::steady_clock::now() + pause))
      return ended_by(*signal).exit_code;
  }
}

LogLevel launcher_log_level(const Environment& environment) {
  return parse_log_level(environment.get("TUTTI_LOG_LEVEL").value_or("info"));
}

// Tells the tasks, and the launchers of other hosts, of --preempt-signal.
void add_preempt_signal(const LaunchOptions& options, std::map<std::string, std::string>& variables) {
  if (options.preempt_signal > 0) variables[kPreemptVariable] = std::to_string(options.preempt_signal);
}

// Returns the environment of the tasks. `alone`: this launcher starts all tasks of the job, so it can make a
// secret for them if the user has given none.
Environment environment_of_tasks(const Environment& environment, const LaunchOptions& options, bool alone) {
  std::map<std::string, std::string> variables = environment.variables();
  // Those of a launcher above this one.
  for (const char* name : {kSecretVariable, kMembersVariable, kLifeVariable}) variables.erase(name);
  if (alone && environment.get("TUTTI_SECRET").value_or("").empty())
    variables[kSecretVariable] = random_key();
  add_preempt_signal(options, variables);
  return Environment(std::move(variables));
}

// Changes to the working folder of the first launcher, so that relative paths have the same meaning.
void enter(const std::string& directory, const Environment& environment, const Log& log) {
  std::error_code error;
  std::filesystem::current_path(directory, error);
  if (!error) return;
  const std::string home = environment.get("HOME").value_or("/");
  log.warning("there is no folder {} on this host ({}); PROGRAM starts in {}", directory, error.message(),
              home);
  std::filesystem::current_path(home);
}

HostReady ready_with(const HeldPorts& ports, const Environment& environment) {
  HostReady ready{std::string(version()), ports.numbers(), "", ""};
  // "CLIENT PORT SERVER PORT". An address with a zone ("fe80::1%eth0") is not valid on other hosts.
  const std::vector<std::string> words = split(environment.get("SSH_CONNECTION").value_or(""), ' ');
  const bool usable = words.size() == 4 && words[0].find('%') == std::string::npos;
  if (usable) ready.client_address = words[0];
  if (usable) ready.own_address = words[2];
  return ready;
}

std::string secret_of_tasks(const Environment& of_tasks) {
  const std::string given = of_tasks.get("TUTTI_SECRET").value_or("");
  return given.empty() ? of_tasks.get(kSecretVariable).value_or("") : given;
}

SurvivalOptions keeper_options(const LaunchOptions& options, int restarts_before,
                               const Environment& of_tasks) {
  return {.min = *options.min,
          .first = options.workers,
          .restarts = options.restarts,
          .restarts_before = restarts_before,
          .timeout = survival_timeout(of_tasks),
          .grace = options.grace,
          .secret = secret_of_tasks(of_tasks)};
}

// With one host, this launcher decides alone.
std::unique_ptr<Survival> survival_of(const Plan& plan, const LaunchOptions& options, int restarts_before,
                                      const Environment& of_tasks) {
  PeerOptions peer{.keeper = keeper_options(options, restarts_before, of_tasks),
                   .token = plan.hosts[plan.own].launcher,
                   .comes_again = plan.comes_again,
                   .keeper_host = plan.keeper,
                   .meeting = plan.meeting,
                   .start_timeout = options.start_timeout};
  SurvivalOptions& keeper = peer.keeper;
  int workers = 0;
  for (size_t host = 0; host < plan.hosts.size(); ++host) {
    const HostOffer& offer = plan.hosts[host];
    workers += offer.workers;
    keeper.hosts.push_back({plan.names[host], offer.workers});
    const bool was_there = host != plan.own || !plan.comes_again;
    keeper.launchers.push_back(was_there ? offer.launcher : "");
  }
  keeper.first = plan.first;
  check_limits(options, plan.first.value_or(workers));
  keeper.own = plan.own;
  keeper.launch = plan.launch;
  if (plan.hosts.size() == 1) return std::make_unique<SurvivalKeeper>(keeper);
  peer.keeper_address = board_address_in(plan.hosts[plan.keeper].launcher).value();
  keeper.port = static_cast<uint16_t>(plan.hosts[plan.own].members_port);
  if (!is_loopback(plan.hosts[plan.own].address)) keeper.listen_at = "";
  return std::make_unique<SurvivalPeer>(peer);
}

// The tasks that this launcher starts and, with --min, the Survival that decides about its workers.
struct Part {
  Plan plan;
  std::unique_ptr<Survival> survival = {};
};

// A launcher that comes again may be told of a keeper that has just been lost. It asks again then, until
// another one has taken its place.
Part take_part(const Planner& planner, const LaunchOptions& options, int restarts_before,
               const Environment& of_tasks, SignalPipe& signals, const Log& log) {
  const auto deadline = deadline_after(options.start_timeout);
  for (;;) {
    Part part{planner.plan(signals)};
    if (part.plan.signal || !options.min) return part;
    try {
      part.survival = survival_of(part.plan, options, restarts_before, of_tasks);
      return part;
    } catch (const Error& error) {
      const bool may_ask = part.plan.comes_again && std::chrono::steady_clock::now() < deadline;
      if (!may_ask || !comm::is_loss(error)) throw;
      log.info("{}; asking again who has the list of the workers", error.what());
    }
  }
}

// This launcher has no workers of its own, but the list of all.
SurvivalOptions keeper_on_hosts(const std::vector<HostSlots>& hosts, const HostsStart& start, int port,
                                SurvivalOptions keeper) {
  const bool discovers =
      std::any_of(hosts.begin(), hosts.end(), [](const HostSlots& host) { return host.host.empty(); });
  for (const HostSlots& host : hosts) keeper.hosts.push_back({host.host, host.slots});
  keeper.own.reset();
  keeper.launch = start.launch;
  keeper.port = static_cast<uint16_t>(port);
  if (start.others || discovers) keeper.listen_at = "";
  return keeper;
}

int workers_on(const std::vector<HostSlots>& hosts) {
  return std::accumulate(hosts.begin(), hosts.end(), 0,
                         [](int sum, const HostSlots& host) { return sum + host.slots; });
}

// The hosts of --discover.
struct Discovered {
  Discovery discovery;
  HostPlaces places;
};

// Waits for hosts with enough slots, with which the job begins. Returns a signal if one has been received.
std::optional<int> await_hosts(Discovered& hosts, LaunchOptions& options, SignalPipe& signals) {
  constexpr std::chrono::milliseconds kBetweenLooks{20};
  const Log log(LogLevel::Info, "tutti run");
  const int least = options.workers.value_or(*options.min);
  const auto deadline = deadline_after(options.start_timeout);
  while (std::chrono::steady_clock::now() < deadline) {
    const auto listed = hosts.discovery.look([&](const std::string& text) { log.warning("{}", text); });
    if (listed && workers_on(*listed) >= least) {
      hosts.places = HostPlaces(*listed, *options.max);
      options.workers = options.workers.value_or(std::min(workers_on(*listed), *options.max));
      return std::nullopt;
    }
    if (auto signal = await_signal(signals, std::chrono::steady_clock::now() + kBetweenLooks)) return signal;
  }
  fail(ErrorKind::Timeout,
       "tutti run: after {:g} s --discover has printed no hosts with {} slots; lower -n, or raise "
       "--start-timeout",
       seconds(options.start_timeout), least);
}

// The list of the workers is at the launcher that has started this one.
std::unique_ptr<Survival> survival_of(const HostJob& job, const Environment& of_tasks) {
  const auto is_worker = [](const Task& task) { return task.job == kWorkerJob; };
  const auto first = std::find_if(job.tasks.begin(), job.tasks.end(), is_worker);
  return std::make_unique<SurvivalGuest>(
      GuestOptions{.host = static_cast<size_t>(job.members->host),
                   .first_worker = first == job.tasks.end() ? 0 : first->index,
                   .workers = static_cast<int>(std::count_if(job.tasks.begin(), job.tasks.end(), is_worker)),
                   .addresses = job.members->addresses,
                   .port = static_cast<uint16_t>(job.members->port),
                   .keeper = "the launcher that has started this one",
                   .launch = job.launch,
                   .secret = secret_of_tasks(of_tasks),
                   .timeout = survival_timeout(of_tasks)});
}

int run_job_of(const HostJob& job, const Environment& environment, LauncherOrders& orders) {
  std::map<std::string, std::string> variables = environment.variables();
  for (const auto& [name, value] : job.variables) variables[name] = value;
  const Environment whole(std::move(variables));
  const Log log(launcher_log_level(whole), "tutti run on " + job.host);
  enter(job.directory, whole, log);
  const std::vector<std::string> gpus = visible_gpus(whole);
  warn_of_missing_gpus(gpus, log);
  std::vector<TaskPlan> plans = plan_tasks(job.cluster, job.tasks, job.store_port, job.launch, gpus);
  const auto count = [&](TaskRole role) {
    return static_cast<size_t>(
        std::count_if(plans.begin(), plans.end(), [&](const TaskPlan& plan) { return plan.role == role; }));
  };
  compare_numbers(count(TaskRole::Worker), gpus.size(), count(TaskRole::Evaluator) > 0, log);
  std::unique_ptr<Survival> survival;
  if (job.members) survival = survival_of(job, whole);
  const GroupOptions options{.evaluator_restarts = job.evaluator_restarts,
                             .interrupt_grace = job.grace,
                             .is_live = whole.get(kLogVariable) == kLogLive,
                             .host = job.host,
                             .orders = &orders,
                             .survival = survival.get()};
  Watching watching(static_cast<int>(parse_int(whole.get(kPreemptVariable).value_or("")).value_or(0)));
  return TaskGroup(job.command, whole, std::move(plans), watching.signals, watching.watch, options)
      .run()
      .exit_code;
}

// Runs the job on these hosts or, if they are discovered, on the others that come.
int run_on_hosts(std::vector<HostSlots> hosts, Discovered* discovered,
                 const std::vector<std::string>& command, const ForwardedVariables& variables,
                 const RemoteShell& shell, const LaunchOptions& given) {
  const Environment environment = environment_of_tasks(variables.environment, given, true);
  ForwardedVariables of_tasks = variables;
  if (const auto secret = environment.get(kSecretVariable)) of_tasks.named[kSecretVariable] = *secret;
  add_preempt_signal(given, of_tasks.named);
  const HeldPorts members_port(given.min ? 1 : 0, given.ports);
  const int port = given.min ? members_port.numbers().front() : 0;
  Watching watching(given.preempt_signal);
  return run_with_restarts(given.restarts, watching.signals, [&](int restarts_before) {
    LaunchOptions options = given;
    if (discovered != nullptr) {
      if (const auto signal = await_hosts(*discovered, options, watching.signals)) return ended_by(*signal);
      hosts = discovered->places.all();
    }
    check_limits(options, options.workers.value_or(workers_on(hosts)));
    HostsStart start = start_hosts(hosts, command, of_tasks, shell, options, port, watching.signals);
    if (start.signal) return ended_by(*start.signal);
    GroupOptions group{.interrupt_grace = options.grace, .is_live = options.is_live};
    std::optional<SurvivalKeeper> survival;
    if (options.min) {
      group.survival = &survival.emplace(
          keeper_on_hosts(hosts, start, port, keeper_options(options, restarts_before, environment)));
      group.goes_on_without_host = [&survival](size_t host) { return survival->goes_on_without_host(host); };
      group.host_again = start.again;
    }
    if (discovered != nullptr)
      group.discover = [&](const Survival::Say& say) {
        const auto listed = discovered->discovery.look(say);
        if (!listed) return HostPlaces::Changes();
        const auto changes = discovered->places.update(*listed, [&](const std::vector<size_t>& places) {
          return survival->can_do_without(places, workers_on(*listed));
        });
        for (const auto& [host, what] : changes.come) {
          start.set_host(host, what.host);
          survival->set_host(host, what.host, what.slots);
        }
        return changes;
      };
    return TaskGroup(std::move(start.hosts), watching.signals, watching.watch, group).run();
  });
}

}  // namespace

int launch(const std::vector<std::string>& command, const Environment& environment,
           const LaunchOptions& options) {
  const Log log = launcher_log(environment);
  const Planner planner(command, environment, options, log);
  if (planner.has_other_hosts()) require_program(command.front());  // before the others begin without it
  const Environment of_tasks = environment_of_tasks(environment, options, !planner.has_other_hosts());
  Watching watching(options.preempt_signal);
  const bool one_by_one = planner.restarts_one_by_one();
  GroupOptions group{
      .evaluator_restarts = options.restarts, .interrupt_grace = options.grace, .is_live = options.is_live};
  const int as_a_whole = one_by_one && !options.min ? 0 : options.restarts;
  return run_with_restarts(as_a_whole, watching.signals, [&](int restarts_before) {
    group.restarts = one_by_one ? options.restarts - restarts_before : 0;
    Part part = take_part(planner, options, restarts_before, of_tasks, watching.signals, log);
    if (part.plan.signal) return ended_by(*part.plan.signal);
    group.survival = part.survival.get();
    return TaskGroup(command, of_tasks, std::move(part.plan.tasks), watching.signals, watching.watch, group)
        .run();
  });
}

int launch_on_hosts(const std::vector<HostSlots>& hosts, const std::vector<std::string>& command,
                    const ForwardedVariables& variables, const RemoteShell& shell,
                    const LaunchOptions& options) {
  return run_on_hosts(hosts, nullptr, command, variables, shell, options);
}

int launch_on_discovered_hosts(const std::string& discover, std::chrono::milliseconds every,
                               const std::vector<std::string>& command, const ForwardedVariables& variables,
                               const RemoteShell& shell, const LaunchOptions& options) {
  if (!options.min || !options.max)
    fail(ErrorKind::InvalidArgument,
         "tutti run: --discover needs --min M and --max X, since the number of workers changes");
  Discovered discovered{.discovery = Discovery(discover, every), .places = {}};
  return run_on_hosts({}, &discovered, command, variables, shell, options);
}

int launch_for_host(int tasks, const std::optional<PortRange>& range, const Environment& environment) {
  constexpr std::chrono::seconds kJobTime{600};
  const HeldPorts ports(tasks, range);
  // The login shell may have printed something without the end of a line.
  print(STDOUT_FILENO, "\n" + to_line(ready_with(ports, environment)));
  LauncherOrders orders(STDIN_FILENO);
  const HostJob job = orders.await_job(kJobTime);
  int code = 0;
  try {
    code = run_job_of(job, environment, orders);
  } catch (const Error& error) {
    print(STDERR_FILENO,
          fmt::format("{}: tutti run on {}: {}\n", to_string(error.kind()), job.host, error.what()));
    code = exit_code(error.kind());
  }
  print(STDOUT_FILENO, end_line(code));
  return code;
}

Log launcher_log(const Environment& environment) { return Log(launcher_log_level(environment), "tutti run"); }

}  // namespace tutti

#include "tools/launch/planner.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/launch/gpus.h"
#include "tools/launch/survival_board.h"
#include "tutti/base/address.h"
#include "tutti/base/error.h"
#include "tutti/base/net.h"
#include "tutti/base/secret.h"
#include "tutti/base/version.h"
#include "tutti/cluster/identity.h"
#include "tutti/cluster/roles.h"

namespace tutti {
namespace {

TaskPlan plan_of(const ClusterSpec& cluster, const Task& task, const std::string& launch) {
  return {task.short_name(),
          {{"TUTTI_CLUSTER_SPEC", cluster.to_string()},
           {"TUTTI_JOB_NAME", task.job},
           {"TUTTI_TASK_INDEX", std::to_string(task.index)},
           {kLaunchVariable, launch}}};
}

// Tells the workers their ranks as torchrun does. The process of rank 0 serves PyTorch's store, at this port
// or, if there is none, at its port in the cluster.
void add_torch_variables(const ClusterSpec& cluster, int store_port, std::vector<TaskPlan>& plans) {
  struct Host {
    size_t index = 0, workers = 0;
  };
  struct Place {
    size_t rank = 0, local_rank = 0;
    const Host* host = nullptr;
  };
  const std::vector<Task> workers = workers_of(cluster);
  std::map<std::string, Host> hosts;  // by address
  std::map<std::string, Place> places;
  for (size_t rank = 0; rank < workers.size(); ++rank) {
    const Task& worker = workers[rank];
    const std::string address = parse_address(cluster.address(worker.job, worker.index)).host;
    Host& host = hosts.try_emplace(address, Host{hosts.size()}).first->second;
    places[worker.short_name()] = {rank, host.workers++, &host};
  }
  for (TaskPlan& plan : plans) {
    const auto place = places.find(plan.name);
    if (place == places.end()) continue;  // a server or an evaluator
    const Address first = parse_address(cluster.address(workers.front().job, workers.front().index));
    const auto [rank, local_rank, host] = place->second;
    plan.torch_variables = {{"RANK", std::to_string(rank)},
                            {"WORLD_SIZE", std::to_string(workers.size())},
                            {"LOCAL_RANK", std::to_string(local_rank)},
                            {"LOCAL_WORLD_SIZE", std::to_string(host->workers)},
                            {"GROUP_RANK", std::to_string(host->index)},
                            {"MASTER_ADDR", first.host},
                            {"MASTER_PORT", std::to_string(store_port > 0 ? store_port : first.port)}};
  }
}

// Gives the task a separate GPU. If there are more workers than GPUs, they are assigned in turn.
void give_gpu(size_t index, const std::vector<std::string>& gpus, TaskPlan& task) {
  if (!gpus.empty()) task.variables["CUDA_VISIBLE_DEVICES"] = gpus[index % gpus.size()];
}

TaskRole role_of(const std::string& job) {
  if (job == kServerJob) return TaskRole::Server;
  if (job == kMasterJob) return TaskRole::Master;
  return job == kEvaluatorJob ? TaskRole::Evaluator : TaskRole::Worker;
}

std::string counted(size_t number, std::string_view what) {
  return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
}

// Returns how the launchers of a TF_CONFIG meet; nullopt if there is none.
std::optional<Meeting> meeting_of(const JobHosts& hosts, int restarts) {
  if (!hosts.own_index()) return std::nullopt;
  Meeting meeting{.own = *hosts.own_index(),
                  .addresses = {hosts.address_of(0)},
                  .terms = {fmt::format("--restarts {}", restarts), "hosts " + hosts.fingerprint()}};
  for (size_t host = 0; host < hosts.row().size(); ++host) meeting.hosts.push_back(hosts.name_of(host));
  meeting.if_terms_differ = fmt::format(
      "its TF_CONFIG lists different hosts than the one of {}, or its --restarts differ; give all "
      "hosts the same \"cluster\" and the same --restarts",
      meeting.hosts.front());
  meeting.if_index_is_taken = "give each host its own \"index\" in TF_CONFIG";
  return meeting;
}

// Launchers compare the file name of the program: it may be in another folder on each host. The first host
// may have another name on each, but a list of all is the same. The workers compare their flags, of which
// some may differ between hosts.
std::vector<std::string> terms_of(const LaunchOptions& options, const std::string& program) {
  const NodeOptions& nodes = *options.nodes;
  std::vector<std::string> terms = {fmt::format("--nnodes {}", nodes.count),
                                    fmt::format("--ps {}", options.servers),
                                    options.evaluator ? "--evaluator" : "--no-evaluator",
                                    fmt::format("--restarts {}", options.restarts),
                                    options.min ? fmt::format("--min {}", *options.min) : "--no-min",
                                    fmt::format("tutti {}", version()),
                                    program,
                                    options.master ? "a master" : "no master"};
  if (nodes.addresses.size() > 1) terms.push_back(fmt::format("at {}", fmt::join(nodes.addresses, ",")));
  return terms;
}

std::optional<Meeting> meeting_of(const LaunchOptions& options, const std::vector<std::string>& command,
                                  const Environment& environment) {
  const NodeOptions& nodes = *options.nodes;
  const std::string program = "program " + std::filesystem::path(command.front()).filename().string();
  Meeting meeting{
      .own = static_cast<size_t>(nodes.rank),
      .addresses = nodes.addresses,
      .terms = terms_of(options, program),
      .program = program,
      .folder = flag_of_program(command, environment, "--logdir", "TUTTI_LOGDIR"),
      .if_terms_differ =
          "give all launchers the same --nnodes, --rendezvous (or TF_CONFIG), --ps, --evaluator, --restarts, "
          "--min and PROGRAM, and the same version of tutti",
      .if_index_is_taken = "give each launcher its own --node-rank, or index in TF_CONFIG"};
  for (int node = 0; node < nodes.count; ++node) meeting.hosts.push_back(fmt::format("node {}", node));
  return meeting;
}

std::optional<Meeting> meeting_of(const LaunchOptions& options, const std::vector<std::string>& command,
                                  const Environment& environment, const std::optional<JobHosts>& hosts) {
  if (options.nodes && hosts)
    fail(ErrorKind::InvalidArgument,
         "tutti run: --nnodes cannot be combined with TF_CONFIG, which also names hosts; omit --nnodes, or "
         "unset TF_CONFIG");
  if (options.nodes) return meeting_of(options, command, environment);
  return hosts ? meeting_of(*hosts, options.restarts) : std::nullopt;
}

}  // namespace

std::string flag_of_program(const std::vector<std::string>& command, const Environment& environment,
                            const std::string& flag, const std::string& variable) {
  std::string value = environment.get(variable).value_or("");
  for (size_t i = 1; i < command.size(); ++i) {
    if (command[i] == flag && i + 1 < command.size()) value = command[i + 1];
    if (command[i].starts_with(flag + "=")) value = command[i].substr(flag.size() + 1);
  }
  return value;
}

int more_tasks(const LaunchOptions& options) {
  return options.servers + (options.master ? 1 : 0) + (options.evaluator ? 1 : 0);
}

int more_ports(const LaunchOptions& options) {
  return more_tasks(options) + (options.min || options.ports ? 0 : 1);
}

Spread spread_tasks(const std::vector<HostOffer>& hosts, const LaunchOptions& options) {
  ClusterSpec::Jobs jobs;
  std::map<std::string, int> next;
  Spread all;
  for (const HostOffer& host : hosts) {
    const bool first = all.tasks.empty();
    const int tasks = host.workers + (first ? more_tasks(options) : 0);
    const bool has_store = first && std::ssize(host.ports) == tasks + 1;
    if (std::ssize(host.ports) != tasks && !has_store)
      fail(ErrorKind::DataLoss, "the host at {} offers {} ports for {} workers", host.address,
           host.ports.size(), host.workers);
    if (has_store) all.store_port = host.ports.back();
    all.tasks.emplace_back();
    auto port = host.ports.begin();
    const auto add = [&](const std::string& job, int count) {
      for (int i = 0; i < count; ++i, ++port) {
        const Task task{.job = job, .index = next[job]++};
        all.tasks.back().push_back(task);
        if (job == kEvaluatorJob) continue;  // it is in no cluster
        auto at =
            std::find_if(jobs.begin(), jobs.end(), [&](const auto& entry) { return entry.first == job; });
        if (at == jobs.end()) at = jobs.insert(jobs.end(), {job, {}});
        at->second.emplace(task.index, to_string(Address{host.address, *port}));
      }
    };
    add(kServerJob, first ? options.servers : 0);
    add(kMasterJob, first && options.master ? 1 : 0);
    add(kWorkerJob, host.workers);
    add(kEvaluatorJob, first && options.evaluator ? 1 : 0);
  }
  all.cluster = ClusterSpec(std::move(jobs));
  return all;
}

void check_limits(const LaunchOptions& options, int workers) {
  constexpr const char* kRefusal = "tutti run: --min {} is not possible with {}; omit one of them";
  if (options.max && !options.min)
    fail(ErrorKind::InvalidArgument,
         "tutti run: --max {} needs --min M, the least number of workers with which the job goes on",
         *options.max);
  if (!options.min) return;
  if (options.master)
    fail(ErrorKind::InvalidArgument, kRefusal, *options.min, "a master (--strategy in-graph)");
  if (*options.min < 1 || *options.min > workers)
    fail(ErrorKind::InvalidArgument, "tutti run: --min {} is not between 1 and the number of workers, {}",
         *options.min, workers);
  if (options.max.value_or(workers) < workers)
    fail(ErrorKind::InvalidArgument, "tutti run: --max {} is below the number of workers, {}", *options.max,
         workers);
}

Planner::Planner(const std::vector<std::string>& command, const Environment& environment,
                 const LaunchOptions& options, const Log& log)
    : options_(options),
      secret_(environment.get("TUTTI_SECRET").value_or("")),
      log_(log),
      hosts_(JobHosts::from(environment)),
      meeting_(meeting_of(options, command, environment, hosts_)),
      gpus_(visible_gpus(environment)),
      ports_(ports_here(), options.ports) {
  if (options_.max && meeting_)
    fail(ErrorKind::InvalidArgument,
         "tutti run: --max {} is not possible with several launchers, where -n of each says how many workers "
         "its host can have; give each a larger -n, and let `tutti scale` lower the number",
         *options_.max);
  if (!has_other_hosts()) check_limits(options_, workers_here());
  if (stands_outside() && options_.workers.value_or(1) != 1) {
    fail(ErrorKind::InvalidArgument,
         "tutti run: -n {} is not possible: TF_CONFIG makes this host {}, which is a single process; omit -n",
         *options_.workers, hosts_->own_index() ? hosts_->name_of(*hosts_->own_index()) : "an evaluator");
  }
  if (hosts_ && options_.servers > 0) {
    fail(ErrorKind::InvalidArgument,
         "tutti run: --ps {} cannot be combined with TF_CONFIG; name the servers in TF_CONFIG, and start "
         "each with its own `tutti run`",
         options_.servers);
  }
  if (hosts_ && options_.ports) {
    fail(ErrorKind::InvalidArgument,
         "tutti run: --ports cannot be combined with TF_CONFIG, which names the ports of its tasks");
  }
  if (hosts_ && options_.evaluator) {
    fail(ErrorKind::InvalidArgument,
         "tutti run: --evaluator cannot be combined with TF_CONFIG; start the evaluator with a TF_CONFIG of "
         "its "
         "own, whose task has the type \"evaluator\"");
  }
  if (has_other_hosts())
    require_secret(parse_address(meeting_->addresses.front()).host, !secret_.empty(), options_.insecure);
  if (stands_outside()) return;
  warn_of_missing_gpus(gpus_, log_);
  compare_numbers(static_cast<size_t>(most_workers_here()), gpus_.size(), options_.evaluator, log_);
}

Plan Planner::plan(SignalPipe& signals) const {
  if (hosts_ && !hosts_->own_index()) return {{{"evaluator", {}}}};
  if (!meeting_) {
    HostOffer here{"127.0.0.1", ports_.numbers(), most_workers_here()};
    const Spread all = spread_tasks({here}, options_);
    const std::string launch = random_key();
    return {.tasks = plan_tasks(all.cluster, all.tasks[0], all.store_port, launch, gpus_),
            .launch = launch,
            .hosts = {std::move(here)},
            .names = {"this host"},
            .first = workers_here()};
  }
  const HostOffer own = own_offer();
  const MeetingOptions terms{secret_, options_.start_timeout, options_.min.has_value()};
  MeetingResult met = meet(*meeting_, own, terms, signals, log_);
  if (met.signal) return {{}, met.signal};
  if (hosts_) return {from_tf_config(met)};
  HostOffer& mine = met.hosts[meeting_->own];
  if (mine.workers != own.workers)
    fail(ErrorKind::InvalidArgument, "tutti run: the job knows {} on this host, not {}; omit -n {}",
         counted(static_cast<size_t>(mine.workers), "worker"), own.workers, own.workers);
  const bool comes_again = mine.launcher != own.launcher;
  mine = own;  // a launcher that comes again may have other ports than before
  const Spread all = spread_tasks(met.hosts, options_);
  return {.tasks = plan_tasks(all.cluster, all.tasks[meeting_->own], all.store_port, met.launch, gpus_),
          .launch = met.launch,
          .hosts = std::move(met.hosts),
          .names = meeting_->hosts,
          .own = meeting_->own,
          .comes_again = comes_again,
          .keeper = met.keeper,
          .meeting = met.open};
}

HostOffer Planner::own_offer() const {
  HostOffer own{.ports = ports_.numbers(), .workers = workers_here()};
  if (hosts_) return own;
  const std::vector<std::string>& known = meeting_->addresses;
  const bool is_known = meeting_->own < known.size();
  own.address = is_known ? parse_address(known[meeting_->own]).host
                         : address_towards(parse_address(known.front()).host);
  if (options_.min && has_other_hosts()) {
    own.members_port = own.ports.back();
    own.ports.pop_back();
    own.launcher = launcher_token({is_loopback(own.address) ? "127.0.0.1" : own.address, own.members_port});
  }
  return own;
}

int Planner::ports_here() const {
  if (hosts_) return 0;
  const bool first = !meeting_ || meeting_->own == 0;
  const bool serves_board = has_other_hosts() && options_.min;
  return most_workers_here() + (first ? more_ports(options_) : 0) + (serves_board ? 1 : 0);
}

bool Planner::stands_outside() const {
  return hosts_ && (!hosts_->own_index() || hosts_->is_server(*hosts_->own_index()));
}

int Planner::workers_here() const {
  if (stands_outside()) return 1;
  const size_t most = kMostWorkersOfAHost;
  return options_.workers.value_or(static_cast<int>(std::clamp<size_t>(gpus_.size(), 1, most)));
}

std::vector<TaskPlan> Planner::from_tf_config(const MeetingResult& met) const {
  std::vector<int> workers;
  for (size_t host = 0; host < met.hosts.size(); ++host)
    workers.push_back(hosts_->is_server(host) ? 1 : met.hosts[host].workers);
  const Spread all = hosts_->spread(workers);
  std::vector<TaskPlan> plans;
  for (const Task& task : all.tasks.at(*hosts_->own_index())) {
    plans.push_back(plan_of(all.cluster, task, met.launch));
    plans.back().variables["TF_CONFIG"] = hosts_->config_for(all.cluster, task);
    if (!stands_outside()) give_gpu(plans.size() - 1, gpus_, plans.back());
  }
  add_torch_variables(all.cluster, all.store_port, plans);
  return plans;
}

std::vector<TaskPlan> plan_tasks(const ClusterSpec& cluster, const std::vector<Task>& tasks, int store_port,
                                 const std::string& launch, const std::vector<std::string>& gpus) {
  std::vector<TaskPlan> plans;
  size_t next_gpu = 0;
  for (const Task& task : tasks) {
    TaskPlan& plan = plans.emplace_back(plan_of(cluster, task, launch));
    plan.role = role_of(task.job);
    if (plan.role == TaskRole::Server || plan.role == TaskRole::Master) {
      plan.variables["CUDA_VISIBLE_DEVICES"] = "";
    } else {
      give_gpu(next_gpu++, gpus, plan);  // an evaluator gets an idle GPU, or shares the GPU of a worker
    }
  }
  add_torch_variables(cluster, store_port, plans);
  return plans;
}

void compare_numbers(size_t workers, size_t gpus, bool evaluator, const Log& log) {
  if (gpus == 0 || workers == gpus) return;
  if (evaluator && workers >= gpus)
    log.warning("the evaluator shares a GPU with a worker, since {} for {}",
                gpus == 1 ? "there is only one" : fmt::format("there are {}", gpus),
                counted(workers, "worker"));
  const std::string both = fmt::format("{} on {}", counted(workers, "worker"), counted(gpus, "GPU"));
  if (workers > gpus) {
    log.warning("{}: workers share GPUs, assigned in turn", both);
  } else {
    log.info("{}: each worker gets one, and the other GPUs stay idle", both);
  }
}

}  // namespace tutti

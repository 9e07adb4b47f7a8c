#include "tutti/ps/server.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/cluster/kernels.h"
#include "tutti/cluster/roles.h"
#include "tutti/ps/peers.h"

namespace tutti::ps {
namespace {

using std::chrono::milliseconds;

rpc::HostOptions host_options(const Context& context, const std::shared_ptr<SharedByGroups>& shared) {
  if (!is_server_job(context.task().job)) {
    fail(ErrorKind::InvalidArgument, "{} is not a parameter server: only tasks of the job 'ps' are",
         context.task().short_name());
  }
  return host_at_own_address(context, shared->refused());
}

std::vector<ServiceOptions::Member> workers_in(const ClusterSpec& cluster) {
  std::vector<ServiceOptions::Member> workers;
  for (const Task& task : workers_of(cluster)) {
    const auto& tasks = cluster.tasks(task.job);
    const auto found = tasks.find(task.index);
    workers.push_back({task.short_name(), found == tasks.end() ? "" : found->second});
  }
  return workers;
}

std::vector<int> first_ranks(size_t count) {
  std::vector<int> ranks(count);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

bool is_for_copy(const rpc::Caller& caller) { return caller.hello.contains("copy"); }

// Both are in ascending order.
bool overlap(const std::vector<int>& one, const std::vector<int>& other) {
  return std::any_of(one.begin(), one.end(),
                     [&](int rank) { return std::binary_search(other.begin(), other.end(), rank); });
}

}  // namespace

GroupServices::GroupServices(const Log& log, const ServiceOptions& options)
    : log_(log),
      options_(options),
      all_(first_ranks(options.workers.size())),
      copy_(std::make_shared<ps::Service>(Log(LogLevel::Off), options)),
      whole_(std::make_shared<ps::Service>(log, options)),
      reminder_(log, options.patience) {}

// Returns the ranks of the workers in the caller's group, in ascending order; nullopt if they make no sense.
std::optional<GroupServices::Ranks> GroupServices::ranks_of(const rpc::Caller& caller) const {
  const auto said = caller.hello.find("group");
  if (said == caller.hello.end()) return all_;
  Ranks ranks;
  for (const Json& rank : *said) {
    const int least = ranks.empty() ? 0 : ranks.back() + 1;
    const int64_t number = rank.is_number_integer() ? rank.get<int64_t>() : -1;
    if (number < least || number >= static_cast<int64_t>(all_.size())) return std::nullopt;
    ranks.push_back(static_cast<int>(number));
  }
  return ranks.empty() ? std::nullopt : std::optional(ranks);
}

std::string GroupServices::name_of_group(const Ranks& ranks) const {
  constexpr size_t kMost = 4;
  if (ranks == all_) return "the group of all workers";
  std::vector<std::string> names;
  for (const int rank : ranks) names.push_back(options_.workers.at(static_cast<size_t>(rank)).task);
  if (names.size() > kMost) {
    const size_t more = names.size() - kMost;
    names.resize(kMost);
    names.push_back(fmt::format("{} more", more));
  }
  const std::string last = names.back();
  names.pop_back();
  return names.empty() ? "the group of " + last
                       : fmt::format("the group of {} and {}", fmt::join(names, ", "), last);
}

std::shared_ptr<ps::Service> GroupServices::make_service(const Ranks& ranks) const {
  ServiceOptions options = options_;
  options.workers.clear();
  for (const int rank : ranks) options.workers.push_back(options_.workers.at(static_cast<size_t>(rank)));
  options.group = name_of_group(ranks);
  return std::make_shared<ps::Service>(log_, options);
}

bool GroupServices::is_at_work(const std::shared_ptr<ps::Service>& service) const {
  return service->has_run() || std::any_of(callers_.begin(), callers_.end(),
                                           [&](const auto& entry) { return entry.second == service; });
}

std::shared_ptr<ps::Service> GroupServices::service_of(const rpc::Caller& caller) {
  std::vector<std::shared_ptr<ps::Service>> replaced;  // destroyed after the lock is released
  const std::lock_guard lock(mutex_);
  if (const auto found = callers_.find(caller.id); found != callers_.end()) return found->second;
  if (is_for_copy(caller)) return callers_[caller.id] = copy_;
  const std::optional<Ranks> found_ranks = ranks_of(caller);
  if (!found_ranks)
    fail(ErrorKind::InvalidArgument,
         "{} is in a group of the workers {}, but the cluster of this server has {} workers, from 0",
         name_of(caller), caller.hello.at("group").dump(), all_.size());
  const Ranks& ranks = *found_ranks;
  const auto require_apart = [&](const Ranks& others, const std::shared_ptr<ps::Service>& service) {
    if (!is_at_work(service)) return;
    fail(ErrorKind::InvalidArgument,
         "{} is in {}, but other workers are in {}: all workers have to split the workers of the job in the "
         "same way",
         name_of(caller), name_of_group(ranks), name_of_group(others));
  };
  if (ranks != all_) require_apart(all_, whole_);
  for (auto part = parts_.begin(); part != parts_.end();) {
    const auto& [others, service] = *part;
    if (others == ranks || !overlap(others, ranks)) {
      ++part;
      continue;
    }
    require_apart(others, service);  // else it is of an earlier start of the job
    replaced.push_back(service);
    part = parts_.erase(part);
  }
  std::shared_ptr<ps::Service> service = whole_;
  if (ranks != all_) {
    std::shared_ptr<ps::Service>& part = parts_[ranks];
    if (!part) {
      part = make_service(ranks);
      if (is_ending_) part->stop();
      arrived_.notify_all();
    }
    service = part;
  }
  callers_[caller.id] = service;
  return service;
}

rpc::Message GroupServices::serve(const rpc::Caller& caller, const std::string& method,
                                  const rpc::Message& request) {
  if (method != "stop") return service_of(caller)->serve(caller, method, request);
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
    copy_->stop();
    for (const auto& [ranks, service] : parts_) service->stop();
    arrived_.notify_all();
  }
  return whole_->serve(caller, method, request);
}

bool GroupServices::takes_incoming(const rpc::Caller& caller, const std::string& method) const {
  std::shared_ptr<ps::Service> service;
  {
    const std::lock_guard lock(mutex_);
    const auto found = callers_.find(caller.id);
    if (found != callers_.end()) service = found->second;
  }
  return service && service->takes_incoming(caller, method);
}

// May be called again when callers_ does not have the caller any more.
void GroupServices::gone(const rpc::Caller& caller) {
  const std::optional<Ranks> ranks = ranks_of(caller);
  std::shared_ptr<ps::Service> part;
  {
    const std::lock_guard lock(mutex_);
    callers_.erase(caller.id);
    if (const auto found = ranks ? parts_.find(*ranks) : parts_.end(); found != parts_.end())
      part = found->second;
  }
  if (is_for_copy(caller)) return copy_->gone(caller);
  if (part) part->gone(caller);
  whole_->gone(caller);  // which may have got its "stop"
}

// Returns the services whose runs have to be over before the job is.
GroupServices::Services GroupServices::awaited() const {
  const std::lock_guard lock(mutex_);
  Services services = parts_;
  if (parts_.empty() || is_ending_) services[all_] = whole_;
  return services;
}

// Returns the workers that belong to none of these services.
std::vector<std::string> GroupServices::in_no_group(const Services& services) const {
  std::set<int> missing(all_.begin(), all_.end());
  for (const auto& [ranks, service] : services) {
    for (const int rank : ranks) missing.erase(rank);
  }
  std::vector<std::string> names;
  for (const int rank : missing)
    names.push_back(fmt::format("{}, which has not connected{}",
                                options_.workers.at(static_cast<size_t>(rank)).text(),
                                options_.shared->refused()->text()));
  return names;
}

bool GroupServices::join_for(milliseconds patience) {
  const auto deadline = deadline_after(patience);
  const Services services = awaited();
  bool is_over = true;
  std::optional<Error> late;
  for (const auto& [ranks, service] : services) {
    try {
      is_over = service->join_for(until(deadline)) && is_over;
    } catch (const Error& error) {
      if (!late) late = error;
    }
  }
  std::unique_lock lock(mutex_);
  const std::vector<std::string> missing = in_no_group(services);
  if (missing.empty())
    static_cast<void>(reminder_.nobody_is_missing());
  else
    reminder_.still_missing(missing);
  if (is_over && missing.empty()) {
    if (late) throw Error(*late);
    return true;
  }
  if (late && late->what() != said_) {
    said_ = late->what();
    log_.warning("{}. The servers go on for the other workers", said_);
  }
  if (is_over) arrived_.wait_until(lock, deadline);
  return false;
}

void GroupServices::end() {
  const std::lock_guard lock(mutex_);
  is_ending_ = true;
  whole_->end();
  for (const auto& [ranks, service] : parts_) service->end();
  arrived_.notify_all();
}

int GroupServices::callers() const {
  int callers = 0;
  for (const auto& [ranks, service] : awaited()) callers += service->callers();
  return callers;
}

Server::Server(const Context& context, std::vector<ElementwiseOptimizer> optimizers)
    : context_(context),
      services_(context.log(), {.workers = workers_in(context.cluster()),
                                .patience = milliseconds_of(context.config().network.start_timeout),
                                .timeout = milliseconds_of(context.config().network.timeout),
                                .shared = shared_,
                                .optimizers = std::move(optimizers),
                                .kernels = {context.task().short_name(), find_lines_of_updates()}}),
      host_(host_options(context, shared_), services_),
      announcement_(context, host_.port()) {}

std::string Server::target() const {
  const Task& task = context_.task();
  const std::string& address = context_.cluster().address(task.job, task.index);
  return fmt::format("grpc://{}:{}", address.substr(0, address.rfind(':')), host_.port());
}

}  // namespace tutti::ps

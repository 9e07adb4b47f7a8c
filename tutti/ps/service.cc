#include "tutti/ps/service.h"

#include <algorithm>
#include <sys/resource.h>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <torch/types.h>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/memory.h"
#include "tutti/base/text.h"
#include "tutti/params/plan.h"
#include "tutti/ps/peers.h"
#include "tutti/ps/wire.h"

// Callers, the run and notes.
namespace tutti::ps {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMostNotes = size_t{256} << 20;  // bytes

// Returns the CPU time of all threads of this process so far.
double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

size_t SharedByGroups::reserve(const Service* service, size_t bytes) {
  const std::lock_guard lock(mutex_);
  size_t available = memory_;
  for (const auto& [other, taken] : reserved_) available -= other == service ? 0 : taken;
  if (bytes == 0)
    reserved_.erase(service);
  else if (bytes <= available)
    reserved_[service] = bytes;
  return available;
}

rpc::Message Service::serve(const rpc::Caller& caller, const std::string& method,
                            const rpc::Message& request) {
  static const std::map<std::string, Method> kMethods = {
      {"state", &Service::state},         {"begin", &Service::begin},
      {"await", &Service::await},         {"join", &Service::join_run},
      {"regroup", &Service::regroup},     {"hand_over", &Service::hand_over},
      {"abandon", &Service::abandon},     {"pull", &Service::pull},
      {"frozen", &Service::frozen},       {"push", &Service::push},
      {"enter", &Service::enter},         {"agree", &Service::agree},
      {"snapshot", &Service::snapshot},   {"note", &Service::note},
      {"read", &Service::read},           {"finish", &Service::finish},
      {"end", &Service::end_job},         {"await_finish", &Service::await_finish},
      {"progress", &Service::progress},   {"scale", &Service::scale},
      {"leave", &Service::leave},         {"stop", &Service::stop_all},
      {"go_on", &Service::go_on},         {"hold", &Service::hold},
      {"release", &Service::release},     {"shares", &Service::shares},
      {"write", &Service::write},         {"tables", &Service::tables},
      {"rows", &Service::rows},           {"rows_saved", &Service::rows_saved},
      {"read_rows", &Service::read_rows}, {"sum_rows", &Service::sum_rows},
      {"all_rows", &Service::all_rows}};
  const auto found = kMethods.find(method);
  if (found == kMethods.end())
    fail(ErrorKind::InvalidArgument, "a parameter server does not support '{}'", method);
  Lock lock(mutex_);
  callers_.try_emplace(caller.id, caller);
  for (auto& [rank, worker] : workers_) worker.requests += worker.caller == caller.id ? 1 : 0;
  if (places_awaited_ > 0) changed_.notify_all();
  ++serving_[caller.id];
  const auto leave = [&] {
    if (--serving_[caller.id] == 0) {
      serving_.erase(caller.id);
      lost_.erase(caller.id);
    }
  };
  try {
    rpc::Message answer = (this->*found->second)(lock, caller, request);
    if (!news_.empty() && is_chief(caller)) answer.head["news"] = std::exchange(news_, {});
    leave();
    return answer;
  } catch (const Json::exception& error) {
    leave();
    fail(ErrorKind::InvalidArgument, "{}: the message is malformed: {}", method, error.what());
  } catch (const Error&) {
    leave();
    throw;
  } catch (const std::exception& error) {
    leave();
    const ErrorKind kind = ran_out(error) ? ErrorKind::Overloaded : ErrorKind::InvalidArgument;
    fail(kind, "{}: {}", method, first_line(error.what()));
  }
}

void Service::gone(const rpc::Caller& caller) {
  const Lock lock(mutex_);
  callers_.erase(caller.id);
  if (callers_.empty()) options_.shared->reserve(this, 0);
  last_gone_ = Clock::now();
  if (serving_.contains(caller.id)) lost_.insert(caller.id);
  release_hold(caller);
  if (kept_ && kept_->caller == caller.id) kept_.reset();
  for (auto& [rank, worker] : workers_) {
    if (worker.caller != caller.id) continue;
    worker.caller = 0;
    if (run_ && run_->sync) run_->sync->withdraw(rank);
    // Another worker may take its place in the step, unless its gradients have been added up.
    if (run_ && run_->added_up < run_->entering) run_->entered.erase(rank);
    if (worker.left || ended_) continue;
    worker.lost = true;
    log_.warning("{} is gone", worker.name);
    tell(fmt::format("{} is gone", worker.name));
    end_epoch(fmt::format("{} is gone", worker.name));
  }
  // Tasks that connect from now on belong to another start of the job and wait for its chief.
  if (run_ && !run_->refused.empty() && callers_.empty()) {
    run_.reset();
    workers_.clear();
    news_.clear();
    log_.info("all tasks{} have left; waiting for the next start of the job. `tutti stop` ends this server",
              options_.group.empty() ? "" : " of " + options_.group);
  }
  changed_.notify_all();
  left_.notify_all();
}

bool Service::join_for(milliseconds patience) {
  Lock lock(mutex_);
  const auto is_done = [&] {
    return (stopped_ && !(stopper_ && callers_.contains(*stopper_))) || (ended_ && all_have_left());
  };
  const bool done = left_.wait_for(lock, patience, is_done);
  if (ended_ && !stopped_) check_who_is_late();
  if (!done) remind();
  return done;
}

void Service::remind() {
  const std::vector<std::string> missing = awaited();
  if (missing.empty())
    static_cast<void>(reminder_.nobody_is_missing());
  else
    reminder_.still_missing(missing);
}

// The tasks that the job needs to begin or to go on, and that are not there.
std::vector<std::string> Service::awaited() const {
  if (stopped_ || (run_ && !run_->refused.empty())) return {};
  if (!run_) return {chief_without_run()};
  std::vector<std::string> missing;
  for (int rank = 0; rank < run_->workers; ++rank) {
    const auto found = workers_.find(rank);
    const bool is_there = found != workers_.end() && found->second.joined && found->second.caller != 0;
    if (!is_there && (found == workers_.end() || !found->second.left)) missing.push_back(whereabouts(rank));
  }
  return missing;
}

// For the next answer to the chief. If it asks no more, nobody needs all of it.
void Service::tell(const std::string& news) {
  constexpr size_t kMost = 100;
  if (news_.size() < kMost) news_.push_back(news);
}

bool Service::is_chief(const rpc::Caller& caller) const {
  const auto chief = workers_.find(0);
  return chief != workers_.end() && chief->second.caller == caller.id;
}

// A worker calls "leave" when it is done. One that does not, and does not come back, was stopped or killed.
void Service::check_who_is_late() const {
  if (patience_ == milliseconds(0)) return;
  const auto now = Clock::now();
  int64_t fits = 0;
  for (const auto& [rank, worker] : workers_) fits = std::max(fits, worker.finished);
  for (const auto& [rank, worker] : workers_) {
    if (worker.left) continue;
    if (worker.caller != 0 && worker.finished < fits && now >= ended_at_ + options_.timeout)
      fail(ErrorKind::Timeout,
           "{} has not finished its steps {:g} s (--timeout) after the chief ended the job: it is stopped or "
           "stuck. The weights are the chief's; they do not include the remaining gradients of that worker",
           worker.name, seconds(options_.timeout));
    if (worker.caller == 0 && callers_.empty() && now >= last_gone_ + patience_)
      fail(
          ErrorKind::Timeout,
          "{} is gone and has not reconnected within {:g} s (--start-timeout) after the chief ended the job: "
          "it was killed, is stopped, or has failed. Look at its output",
          worker.name, seconds(patience_));
  }
}

bool Service::all_have_left() const {
  if (!callers_.empty()) return false;
  return Clock::now() >= last_gone_ + patience_ ||
         std::all_of(workers_.begin(), workers_.end(), [](const auto& entry) { return entry.second.left; });
}

void Service::end() {
  const Lock lock(mutex_);
  ended_ = true;
  ended_at_ = Clock::now();
  patience_ = milliseconds(0);
  changed_.notify_all();
  left_.notify_all();
}

void Service::stop() {
  const Lock lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
  left_.notify_all();
}

int Service::callers() const {
  const Lock lock(mutex_);
  return static_cast<int>(callers_.size());
}

bool Service::has_run() const {
  const Lock lock(mutex_);
  return run_ && !(ended_ && all_have_left());
}

// Pushes of synchronous steps are added up as they arrive, except with backup workers.
bool Service::takes_incoming(const Run& run) { return run.synchronous && run.backup == 0; }

bool Service::takes_incoming(const rpc::Caller&, const std::string& method) const {
  const Lock lock(mutex_);
  return method == "push" && run_ && takes_incoming(*run_);
}

Service::Clock::time_point Service::deadline_of(const rpc::Message& request) {
  return deadline_after(milliseconds(number_within(request.head, "patience", 0, kLongestPatience)));
}

bool Service::holds_in_time(Lock& lock, const rpc::Caller& caller, const rpc::Message& request,
                            Clock::time_point deadline, const std::function<bool()>& holds) {
  const bool in_run = !request.head.value("run", std::string()).empty();
  const auto is_over = [&] {
    return lost_.contains(caller.id) || stopped_ || (in_run && !is_of_epoch(request)) ||
           (run_ && !run_->refused.empty()) || holds();
  };
  const bool in_time = changed_.wait_until(lock, deadline, is_over);
  require_present(caller, request);
  if (run_ && !run_->refused.empty() && !holds()) fail(ErrorKind::InvalidArgument, "{}", run_->refused);
  return in_time;
}

void Service::wait_until(Lock& lock, const rpc::Caller& caller, const rpc::Message& request,
                         Clock::time_point deadline, const std::function<bool()>& holds,
                         const std::function<std::string()>& late) {
  if (holds_in_time(lock, caller, request, deadline, holds)) return;
  const std::string why = late();
  end_epoch(why);
  fail(ErrorKind::Timeout, "{}. Look at the output of who is missing and at the network, or raise --timeout",
       why);
}

void Service::require_present(const rpc::Caller& caller, const rpc::Message& request) const {
  if (lost_.contains(caller.id)) fail(ErrorKind::PeerLost, "{} is gone", name_of(caller));
  if (stopped_) fail(ErrorKind::PeerLost, "the server was stopped");
  if (!request.head.value("run", std::string()).empty()) require_run(request);
}

int Service::rank_of(const rpc::Caller& caller) const {
  for (const auto& [rank, worker] : workers_) {
    if (worker.caller == caller.id) return rank;
  }
  fail(ErrorKind::InvalidArgument, "{} has not joined", name_of(caller));
}

// A worker that has not noticed that the servers returned to a checkpoint would otherwise push gradients of
// the abandoned run.
void Service::require_run(const rpc::Message& request) const {
  if (!run_) fail(ErrorKind::PeerLost, "{}", kNoRun);
  if (text_in(request.head, "run") != run_->id)
    fail(ErrorKind::PeerLost, "the servers have returned to an earlier checkpoint");
  require_epoch(request);
  if (!run_->refused.empty()) fail(ErrorKind::InvalidArgument, "{}", run_->refused);
}

void Service::refuse_run(const Error& error) {
  run_->refused = options_.group.empty() ? error.what() : fmt::format("{}: {}", options_.group, error.what());
  log_.warning("the run ends: {}", run_->refused);
  changed_.notify_all();
  throw Error(error.kind(), run_->refused);
}

std::string Service::missing(const std::function<bool(int, const Worker&)>& is_missing) const {
  std::vector<std::string> names;
  for (int rank = 0; rank < run_->workers; ++rank) {
    const auto found = workers_.find(rank);
    if (found == workers_.end() || is_missing(rank, found->second)) names.push_back(whereabouts(rank));
  }
  return fmt::format("{}", fmt::join(names, "; "));
}

std::string Service::whereabouts(int rank) const {
  const auto found = workers_.find(rank);
  if (found != workers_.end() && found->second.caller != 0) return found->second.name;
  const auto at = static_cast<size_t>(rank);
  const bool has_moved = run_ && run_->epoch > 0;
  const ServiceOptions::Member member =
      at < options_.workers.size() && !has_moved ? options_.workers[at] : ServiceOptions::Member{};
  for (const auto& [id, caller] : callers_) {
    const auto task = caller.hello.find("task");
    if (task != caller.hello.end() && *task == member.task)
      return fmt::format("{}, which is connected but has not {}", name_of(caller),
                         run_ ? "joined the run" : "begun the training");
  }
  if (found != workers_.end()) return found->second.name + ", which is gone";
  return fmt::format("{}, which has not connected{}",
                     member.task.empty() ? fmt::format("the worker of rank {}", rank) : member.text(),
                     options_.shared->refused()->text());
}

std::string Service::chief_without_run() const { return "the chief, " + whereabouts(0); }

std::vector<std::string> Service::workers_not_joined() const {
  std::vector<std::string> missing;
  for (int rank = 0; rank < run_->workers; ++rank) {
    const auto found = workers_.find(rank);
    if (found == workers_.end() || !found->second.joined) missing.push_back(whereabouts(rank));
  }
  return missing;
}

rpc::Message Service::await(Lock& lock, const rpc::Caller& caller, const rpc::Message& request) {
  const bool for_workers = request.head.contains("run");
  if (for_workers) require_run(request);
  const auto are_there = [&] {
    if (!for_workers) return run_ != nullptr;
    const auto joined = std::count_if(workers_.begin(), workers_.end(),
                                      [](const auto& entry) { return entry.second.joined; });
    return static_cast<size_t>(joined) >= enough();
  };
  std::vector<std::string> missing;
  if (!holds_in_time(lock, caller, request, deadline_of(request), are_there))
    missing = for_workers ? workers_not_joined() : std::vector{chief_without_run()};
  return {{{"missing", missing}}, {}};
}

rpc::Message Service::state(Lock&, const rpc::Caller&, const rpc::Message&) {
  if (!run_ || !run_->refused.empty())
    return {{{"begun", false}, {"cpu_seconds", cpu_seconds()}, {"kernels", to_json(options_.kernels)}}, {}};
  Json staleness = Json::object();
  for (const auto& [steps, updates] : run_->staleness_counts) staleness[std::to_string(steps)] = updates;
  return {{{"begun", true},
           {"run", run_->id},
           {"step", run_->step},
           {"plan", run_->plan.lines},
           {"progress", run_->progress},
           {"staleness", std::move(staleness)},
           {"dropped", run_->dropped},
           {"bytes", run_->shard.bytes()},
           {"cpu_seconds", cpu_seconds()},
           {"kernels", to_json(options_.kernels)}},
          {}};
}

void Service::take_room(size_t bytes) {
  if (note_bytes_ + bytes > kMostNotes)
    fail(ErrorKind::Overloaded, "not enough memory for a note of {} bytes: other notes use {}", bytes,
         note_bytes_);
  note_bytes_ += bytes;
}

rpc::Message Service::agree(Lock&, const rpc::Caller& caller, const rpc::Message& request) {
  require_run(request);
  static_cast<void>(rank_of(caller));  // throws unless the caller has joined
  const std::string key = text_in(request.head, "key");
  const Agreement plan{name_of(caller), lines_in(request.head, "plan")};
  const auto found = run_->agreed.find(key);
  if (found == run_->agreed.end()) {
    size_t bytes = key.size();
    for (const std::string& line : plan.lines) bytes += line.size();
    take_room(bytes);
    run_->agreed.emplace(key, plan);
    return {};
  }
  try {
    require_same(found->second, plan);
  } catch (const Error& error) {
    refuse_run(error);
  }
  return {};
}

rpc::Message Service::note(Lock&, const rpc::Caller&, const rpc::Message& request) {
  const std::string key = text_in(request.head, "key");
  const Json& value = request.head.at("value");
  const size_t bytes = key.size() + value.dump().size();
  take_room(bytes);
  notes_[key] = value;
  changed_.notify_all();
  return {};
}

rpc::Message Service::read(Lock& lock, const rpc::Caller& caller, const rpc::Message& request) {
  const std::string key = text_in(request.head, "key");
  wait(
      lock, caller, request, [&] { return notes_.contains(key); },
      [&] { return fmt::format("the chief, {}, has not stored the note '{}'", whereabouts(0), key); });
  return {{{"value", notes_.at(key)}}, {}};
}

rpc::Message Service::progress(Lock&, const rpc::Caller&, const rpc::Message& request) {
  require_run(request);
  run_->progress.update(object_in(request.head, "progress"));
  return {};
}

rpc::Message Service::finish(Lock&, const rpc::Caller& caller, const rpc::Message& request) {
  require_run(request);
  worker_of(caller).finished = number_within(request.head, "fits", 0, kMostSteps);
  changed_.notify_all();
  return {};
}

rpc::Message Service::await_finish(Lock& lock, const rpc::Caller& caller, const rpc::Message& request) {
  require_run(request);
  const int64_t fits = number_in(request.head, "fits");
  const auto is_at_work = [fits](int, const Worker& worker) { return worker.finished < fits; };
  wait(
      lock, caller, request,
      [&] {
        const auto finished = std::count_if(workers_.begin(), workers_.end(),
                                            [&](const auto& entry) { return entry.second.finished >= fits; });
        return finished == run_->workers;
      },
      [&] { return fmt::format("not finished: {}", missing(is_at_work)); });
  return {};
}

rpc::Message Service::end_job(Lock&, const rpc::Caller&, const rpc::Message&) {
  ended_ = true;
  ended_at_ = Clock::now();
  changed_.notify_all();
  left_.notify_all();
  return {};
}

// Callers that have not joined this server, for example because it was restarted, may leave as well.
rpc::Message Service::leave(Lock&, const rpc::Caller& caller, const rpc::Message&) {
  for (auto& [rank, worker] : workers_) {
    if (worker.caller == caller.id) worker.left = true;
  }
  return {};
}

rpc::Message Service::stop_all(Lock&, const rpc::Caller& caller, const rpc::Message&) {
  log_.info("stopped by {}", name_of(caller));
  stopped_ = true;
  stopper_ = caller.id;
  changed_.notify_all();
  left_.notify_all();
  return {};
}

}  // namespace tutti::ps

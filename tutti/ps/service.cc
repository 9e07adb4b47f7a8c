#include "tutti/ps/service.h"

#include <algorithm>
#include <sys/resource.h>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <torch/types.h>

#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/params/agreement.h"
#include "tutti/ps/peer.h"
#include "tutti/ps/wire.h"

// Who is there, and what they tell each other. The steps are in service_steps.cc.
namespace tutti::ps {
namespace {

using std::chrono::milliseconds;

constexpr int64_t kLongestPatience = 1000000000000;  // ms: 30 years, which can be added to the time
constexpr size_t kMostNotes = size_t{256} << 20;     // bytes

// Of all cores, so far.
double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

rpc::Message Service::serve(const rpc::Caller& caller, const std::string& method,
                            const rpc::Message& request) {
  static const std::map<std::string, Method> kMethods = {
      {"state", &Service::state},       {"begin", &Service::begin}, {"join", &Service::join_run},
      {"pull", &Service::pull},         {"push", &Service::push},   {"enter", &Service::enter},
      {"snapshot", &Service::snapshot}, {"note", &Service::note},   {"read", &Service::read},
      {"finish", &Service::finish},     {"end", &Service::end_job}, {"await_finish", &Service::await_finish},
      {"progress", &Service::progress}, {"scale", &Service::scale}, {"leave", &Service::leave},
      {"stop", &Service::stop_all}};
  const auto found = kMethods.find(method);
  if (found == kMethods.end())
    fail(ErrorKind::InvalidArgument, "a parameter server does not know how to '{}'", method);
  Lock lock(mutex_);
  callers_.insert(caller.id);
  ++serving_[caller.id];
  const auto leave = [&] {
    if (--serving_[caller.id] == 0) {
      serving_.erase(caller.id);
      lost_.erase(caller.id);
    }
  };
  try {
    rpc::Message answer = (this->*found->second)(lock, caller, request);
    leave();
    return answer;
  } catch (const Json::exception& error) {
    leave();
    fail(ErrorKind::InvalidArgument, "{}: the message does not make sense: {}", method, error.what());
  } catch (const Error&) {
    leave();
    throw;
  } catch (const std::exception& error) {
    leave();
    fail(ErrorKind::InvalidArgument, "{}: {}", method, first_line(error.what()));
  }
}

void Service::gone(const rpc::Caller& caller) {
  const Lock lock(mutex_);
  callers_.erase(caller.id);
  last_gone_ = Clock::now();
  if (serving_.contains(caller.id)) lost_.insert(caller.id);
  for (auto& [rank, worker] : workers_) {
    if (worker.caller != caller.id) continue;
    worker.caller = 0;
    if (run_ && run_->sync) run_->sync->withdraw(rank);
    // Another may take its place, unless its gradients are in.
    if (run_ && run_->added_up < run_->entering) run_->entered.erase(rank);
    if (!worker.left && !ended_) log_.warning("{} is gone", worker.name);
  }
  changed_.notify_all();
  left_.notify_all();
}

bool Service::join_for(milliseconds patience) {
  Lock lock(mutex_);
  return left_.wait_for(lock, patience, [&] {
    return (stopped_ && !callers_.contains(stopper_)) || (ended_ && all_have_left());
  });
}

bool Service::all_have_left() const {
  if (!callers_.empty()) return false;
  return Clock::now() >= last_gone_ + patience_ ||
         std::all_of(workers_.begin(), workers_.end(), [](const auto& entry) { return entry.second.left; });
}

void Service::end() {
  const Lock lock(mutex_);
  ended_ = true;
  patience_ = milliseconds(0);
  changed_.notify_all();
  left_.notify_all();
}

int Service::callers() {
  const Lock lock(mutex_);
  return static_cast<int>(callers_.size());
}

void Service::wait(Lock& lock, const rpc::Caller& caller, const rpc::Message& request,
                   const std::function<bool()>& holds, const std::function<std::string()>& late) {
  const auto deadline =
      Clock::now() + milliseconds(number_within(request.head, "patience", 0, kLongestPatience));
  const std::string run = request.head.value("run", std::string());
  const auto is_over = [&] {
    return lost_.contains(caller.id) || stopped_ || (!run.empty() && (!run_ || run_->id != run)) || holds();
  };
  const bool in_time = changed_.wait_until(lock, deadline, is_over);
  if (lost_.contains(caller.id)) fail(ErrorKind::PeerLost, "{} is gone", name_of(caller));
  if (stopped_) fail(ErrorKind::PeerLost, "the server was stopped");
  if (!run.empty()) require_run(request);
  if (!in_time) fail(ErrorKind::Timeout, "{}", late());
}

int Service::rank_of(const rpc::Caller& caller) const {
  for (const auto& [rank, worker] : workers_) {
    if (worker.caller == caller.id) return rank;
  }
  fail(ErrorKind::InvalidArgument, "{} has not joined", name_of(caller));
}

// A worker that has slept through the servers' being set back would push what belongs to another past.
void Service::require_run(const rpc::Message& request) const {
  if (!run_) fail(ErrorKind::PeerLost, "the server has started anew and knows of no training yet");
  if (text_in(request.head, "run") != run_->id)
    fail(ErrorKind::PeerLost, "the servers were set back to an earlier checkpoint meanwhile");
}

std::string Service::missing(const std::function<bool(int, const Worker&)>& is_missing) const {
  std::vector<std::string> names;
  for (int rank = 0; rank < run_->workers; ++rank) {
    const auto found = workers_.find(rank);
    if (found == workers_.end()) {
      names.push_back(fmt::format("the worker of rank {}, which has never come", rank));
    } else if (is_missing(rank, found->second)) {
      names.push_back(found->second.name + (found->second.caller == 0 ? ", which is gone" : ""));
    }
  }
  return fmt::format("{}", fmt::join(names, "; "));
}

rpc::Message Service::state(Lock&, const rpc::Caller&, const rpc::Message&) {
  if (!run_) return {{{"begun", false}, {"cpu_seconds", cpu_seconds()}}, {}};
  Json staleness = Json::object();
  for (const auto& [steps, updates] : run_->staleness_counts) staleness[std::to_string(steps)] = updates;
  return {{{"begun", true},
           {"run", run_->id},
           {"step", run_->step},
           {"plan", run_->plan},
           {"progress", run_->progress},
           {"staleness", std::move(staleness)},
           {"dropped", run_->dropped},
           {"bytes", run_->shard.bytes()},
           {"cpu_seconds", cpu_seconds()}},
          {}};
}

rpc::Message Service::join_run(Lock& lock, const rpc::Caller& caller, const rpc::Message& request) {
  const int rank = static_cast<int>(number_within(request.head, "rank", 0, kMostWorkers));
  wait(
      lock, caller, request, [&] { return run_ != nullptr; },
      [] { return std::string("the chief has not begun the training"); });
  require_same_plan(run_->plan, lines_in(request.head, "plan"), name_of(caller));
  if (rank >= run_->workers)
    fail(ErrorKind::InvalidArgument, "{} has rank {}, but the chief counts {} workers", name_of(caller), rank,
         run_->workers);
  Worker& worker = workers_[rank];
  // One that was killed is found out in a moment; one that lives is another with the same index.
  wait(
      lock, caller, request, [&] { return worker.caller == 0 || worker.caller == caller.id; },
      [&] { return fmt::format("two tasks have one index: {} and {}", worker.name, name_of(caller)); });
  worker.caller = caller.id;
  worker.name = name_of(caller);
  worker.left = false;
  changed_.notify_all();
  return {{{"run", run_->id}, {"step", run_->step}, {"progress", run_->progress}}, {}};
}

rpc::Message Service::note(Lock&, const rpc::Caller&, const rpc::Message& request) {
  const std::string key = text_in(request.head, "key");
  const Json& value = request.head.at("value");
  const size_t bytes = key.size() + value.dump().size();
  if (notes_.empty()) note_bytes_ = 0;
  if (note_bytes_ + bytes > kMostNotes)
    fail(ErrorKind::Overloaded, "no room for a note of {} bytes: others have taken {}", bytes, note_bytes_);
  note_bytes_ += bytes;
  notes_[key] = value;
  changed_.notify_all();
  return {};
}

rpc::Message Service::read(Lock& lock, const rpc::Caller& caller, const rpc::Message& request) {
  const std::string key = text_in(request.head, "key");
  wait(
      lock, caller, request, [&] { return notes_.contains(key); },
      [&] { return fmt::format("the chief has not told of '{}'", key); });
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
  changed_.notify_all();
  left_.notify_all();
  return {};
}

// One that this server, started anew, has not seen join leaves as well.
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

#include "tutti/ps/service.h"

#include <algorithm>
#include <cstring>
#include <sys/resource.h>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/params/agreement.h"
#include "tutti/params/optimizer_state.h"
#include "tutti/ps/peer.h"
#include "tutti/ps/wire.h"

namespace tutti::ps {
namespace {

using std::chrono::milliseconds;

constexpr int64_t kMostWorkers = 1 << 16;
constexpr int64_t kMostLanes = 1 << 20;
constexpr int64_t kMost = int64_t{1} << 60;          // of what is only compared
constexpr int64_t kLongestPatience = 1000000000000;  // ms: 30 years, which can be added to the time
constexpr int64_t kMostExamples = int64_t{1} << 40;  // of a push
constexpr size_t kMostNotes = size_t{256} << 20;     // bytes

int64_t number_within(const Json& head, const char* name, int64_t least, int64_t most,
                      std::optional<int64_t> otherwise = {}) {
  if (otherwise && !head.contains(name)) return *otherwise;
  const int64_t number = number_in(head, name);
  if (number < least || number > most)
    fail(ErrorKind::InvalidArgument, "'{}' is {}; it can be {} to {}", name, number, least, most);
  return number;
}

const Json& object_in(const Json& head, const char* name) {
  const Json& object = head.at(name);
  if (!object.is_object()) fail(ErrorKind::InvalidArgument, "'{}' is no object", name);
  return object;
}

// Before memory is taken for what the head speaks of.
void require_as_long_as_said(const Json& head, const rpc::Message& message) {
  int64_t bytes =
      bytes_in(head.at("buffers")) + bytes_in(head.at("counters")) + bytes_in(head.at("state").at("slots"));
  for (const Shard::Part& part : parts_from_json(head.at("parts")))
    bytes += (part.end - part.begin) * static_cast<int64_t>(c10::elementSize(part.type));
  if (bytes != bytes_of(message))
    fail(ErrorKind::InvalidArgument, "the message speaks of {} bytes, but has {}", bytes, bytes_of(message));
}

using Tensors = std::vector<torch::Tensor>;

void append(rpc::Message& message, const Tensors& tensors) {
  for (const torch::Tensor& tensor : tensors) message.pieces.push_back(piece_of(tensor));
}

// Where they may change before the answer is sent. The copies are made where the caller wants them, if that
// is seen from here.
void append_copies(rpc::Message& message, const Tensors& tensors, const rpc::Message& request) {
  for (const torch::Tensor& tensor : tensors) {
    const std::span<std::byte> from = bytes_of(tensor);
    const size_t index = message.pieces.size();
    if (index < request.into.size() && request.into[index].size() == from.size() && !from.empty()) {
      const std::span<std::byte> to = request.into[index];
      std::memcpy(to.data(), from.data(), from.size());
      message.pieces.push_back({to});
    } else {
      message.pieces.push_back(piece_of(tensor.clone()));
    }
  }
}

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

Service::Run::Run(const Json& head, const rpc::Message& message)
    : id(text_in(head, "run")),
      plan(lines_in(head, "plan")),
      workers(static_cast<int>(number_within(head, "workers", 1, kMostWorkers))),
      synchronous(text_in(head, "strategy") == "ps-sync"),
      backup(number_within(head, "backup", 0, kMostWorkers)),
      staleness(number_within(head, "staleness", -kMost, kMost)),
      shard(parts_from_json(head.at("parts")), optimizer_from_json(head.at("optimizer"))),
      buffers(zeros_from_json(head.at("buffers"))),
      counters(zeros_from_json(head.at("counters"))),
      step(number_within(head, "step", 0, kMost)),
      progress(object_in(head, "progress")) {
  Reader reader(message);
  for (const Stretch& stretch : shard.stretches()) reader.take_into(stretch.values);
  reader.take_into(buffers);
  reader.take_into(counters);
  const Optimizer::State state = state_of(head.at("state"));
  reader.take_into(vectors_of(state));
  shard.optimizer().restore(state);
  reader.end();
  if (synchronous && head.at("redo").get<bool>()) {
    for (const torch::Tensor& tensor : everything()) previous.push_back(tensor.clone());
  }
  if (!synchronous) return;
  for (const Stretch& stretch : shard.stretches()) stretch.grads.zero_();
  sync.emplace(std::vector<Stretch>(shard.stretches().begin(), shard.stretches().end()), shard.optimizer(),
               buffers, counters, SyncOptions{workers, number_within(head, "lanes", 1, kMostLanes)});
}

std::vector<torch::Tensor> Service::Run::everything() const {
  std::vector<torch::Tensor> all;
  for (const Stretch& stretch : shard.stretches()) all.push_back(stretch.values);
  all.insert(all.end(), buffers.begin(), buffers.end());
  all.insert(all.end(), counters.begin(), counters.end());
  return all;
}

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
    const std::string text = error.what();
    fail(ErrorKind::InvalidArgument, "{}: {}", method, text.substr(0, text.find('\n')));
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

rpc::Message Service::begin(Lock&, const rpc::Caller& caller, const rpc::Message& request) {
  require_as_long_as_said(request.head, request);
  auto run = std::make_unique<Run>(request.head, request);
  const int64_t fits = run->progress.value("fit", int64_t{0});
  run_ = std::move(run);
  notes_.clear();
  for (auto& [rank, worker] : workers_) {
    worker.pushes = worker.pulled = 0;
    worker.finished = std::min(worker.finished, fits);
  }
  log_.info("{} of parameters at step {}, from {}",
            fmt::format("{:.1f} MB", static_cast<double>(run_->shard.bytes()) / 1e6), run_->step,
            name_of(caller));
  changed_.notify_all();
  return {};
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

rpc::Message Service::copies_for(int rank, const rpc::Message& request) {
  rpc::Message answer{{{"step", run_->step}}, {}};
  append_copies(answer, run_->everything(), request);
  workers_.at(rank).pulled = run_->step;
  return answer;
}

// Those of a synchronous step. Nobody changes them before this has been sent, unless a step can do without
// this worker.
void Service::add_values(rpc::Message& answer, int rank, const rpc::Message& request) {
  answer.head["step"] = run_->step;
  if (run_->backup > 0) {
    append_copies(answer, run_->everything(), request);
  } else {
    append(answer, run_->everything());
  }
  workers_.at(rank).pulled = run_->step;
}

rpc::Message Service::copies_at(int64_t step, int rank, const rpc::Message& request) {
  const bool is_past = step + 1 == run_->step || (step == run_->step && run_->added_up == step);
  if (!is_past && step != run_->step) {
    fail(ErrorKind::PeerLost, "the server is at step {}, and knows nothing of step {} any more", run_->step,
         step);
  }
  if (!is_past || run_->previous.empty()) return copies_for(rank, request);
  rpc::Message answer{{{"step", step}}, {}};
  append_copies(answer, run_->previous, request);
  workers_.at(rank).pulled = step;
  return answer;
}

rpc::Message Service::pull(Lock&, const rpc::Caller& caller, const rpc::Message& request) {
  require_run(request);
  const int rank = rank_of(caller);
  if (!request.head.contains("step")) return copies_for(rank, request);
  return copies_at(number_within(request.head, "step", 0, kMost), rank, request);
}

rpc::Message Service::push(Lock& lock, const rpc::Caller& caller, const rpc::Message& request) {
  require_run(request);
  const int rank = rank_of(caller);
  return run_->synchronous ? push_synchronous(lock, caller, rank, request)
                           : push_asynchronous(lock, caller, rank, request);
}

void Service::add_up(const rpc::Message& request) {
  if (const auto rate = request.head.find("rate"); rate != request.head.end())
    run_->shard.optimizer().set_learning_rate(rate->get<double>());
  const std::vector<torch::Tensor> now = run_->everything();
  for (size_t i = 0; i < run_->previous.size(); ++i) run_->previous[i].copy_(now[i]);
  const SyncStep::Result result = run_->sync->add_up(run_->step);
  run_->words = result.words;
  run_->added_up = run_->step;
  run_->progress["examples"] = run_->progress.value("examples", int64_t{0}) + result.examples;
  changed_.notify_all();
}

void Service::make_step(double factor) {
  run_->sync->apply(factor);
  ++run_->step;
  changed_.notify_all();
}

rpc::Message Service::push_synchronous(Lock& lock, const rpc::Caller& caller, int rank,
                                       const rpc::Message& request) {
  const int64_t step = number_within(request.head, "step", 0, kMost);
  // One that was killed after this server had its gradients, and before another had them, comes once more.
  if (step != run_->step && step + 1 != run_->step)
    fail(ErrorKind::InvalidArgument, "{} is at step {}, the server at step {}", name_of(caller), step,
         run_->step);
  const bool scaled = request.head.value("scaled", false);
  if (run_->added_up < step) {
    run_->sync->offer(rank, step, request);
    ++workers_.at(rank).pushes;
    const int64_t expected = number_within(request.head, "expected", 1, run_->workers, run_->workers);
    if (run_->sync->offers() >= expected) {
      add_up(request);
      if (!scaled) make_step(1);
    }
    await_sum(lock, caller, rank, request, step);
  }
  rpc::Message answer{Json::object(), {piece_of(run_->words)}};
  if (scaled) {
    add_gradients(answer);
  } else {
    add_values(answer, rank, request);
  }
  return answer;
}

void Service::await_sum(Lock& lock, const rpc::Caller& caller, int rank, const rpc::Message& request,
                        int64_t step) {
  const auto is_missing = [&](int other, const Worker&) { return !run_->sync->has(other); };
  try {
    wait(
        lock, caller, request, [&] { return run_->added_up >= step; },
        [&] { return fmt::format("no gradients for step {} from {}", step, missing(is_missing)); });
  } catch (const Error&) {
    if (run_ && run_->sync && run_->added_up < step) run_->sync->withdraw(rank);
    throw;
  }
}

void Service::add_gradients(rpc::Message& answer) {
  for (const Stretch& stretch : run_->shard.stretches()) answer.pieces.push_back(piece_of(stretch.grads));
  append(answer, run_->buffers);
  append(answer, run_->counters);
}

// Every worker has found the same factor; the first to say so makes the update.
rpc::Message Service::scale(Lock&, const rpc::Caller& caller, const rpc::Message& request) {
  require_run(request);
  const int rank = rank_of(caller);
  const int64_t step = number_within(request.head, "step", 0, kMost);
  if (step == run_->step && run_->added_up == step) make_step(request.head.at("factor").get<double>());
  if (step + 1 != run_->step)
    fail(ErrorKind::InvalidArgument, "{} is at step {}, the server at step {}", name_of(caller), step,
         run_->step);
  rpc::Message answer;
  add_values(answer, rank, request);
  return answer;
}

rpc::Message Service::enter(Lock& lock, const rpc::Caller& caller, const rpc::Message& request) {
  require_run(request);
  const int rank = rank_of(caller);
  const int64_t step = number_in(request.head, "step");
  const auto enough = static_cast<size_t>(std::max<int64_t>(1, run_->workers - run_->backup));
  if (run_->entering < step && step == run_->step) {
    run_->entering = step;
    run_->entered.clear();
  }
  if (step != run_->entering || (run_->entered.size() >= enough && !run_->entered.contains(rank))) {
    ++run_->dropped;
    return {{{"late", true}, {"step", run_->step}}, {}};
  }
  run_->entered.insert(rank);
  changed_.notify_all();
  wait(
      lock, caller, request, [&] { return run_->entering > step || run_->entered.size() >= enough; },
      [&] {
        return fmt::format("step {} needs {} workers; missing is {}", step, enough,
                           missing([&](int r, const Worker&) { return !run_->entered.contains(r); }));
      });
  return {{{"late", false}, {"expected", enough}}, {}};
}

// Whether it is not too far ahead of the slowest that is still at work.
bool Service::may_go_on(const Worker& worker) const {
  if (run_->staleness < 0) return true;
  int64_t slowest = worker.pushes;
  for (const auto& [rank, other] : workers_) {
    if (other.caller != 0 && other.finished <= worker.finished) slowest = std::min(slowest, other.pushes);
  }
  const bool all_here = static_cast<int>(workers_.size()) == run_->workers;
  return worker.pushes - (all_here ? slowest : 0) <= run_->staleness;
}

rpc::Message Service::push_asynchronous(Lock& lock, const rpc::Caller& caller, int rank,
                                        const rpc::Message& request) {
  const torch::NoGradGuard no_grad;
  const auto end = request.head.value("end", int64_t{-1});
  // The first server counts the steps, and tells the last to come that there are none left.
  if (end >= 0 && run_->step >= end) {
    rpc::Message answer = copies_for(rank, request);
    answer.head["made"] = false;
    return answer;
  }
  const int64_t examples = number_within(request.head, "examples", 0, kMostExamples, 0);
  Reader reader(request);
  if (const auto rate = request.head.find("rate"); rate != request.head.end())
    run_->shard.optimizer().set_learning_rate(rate->get<double>());
  // As they lie in what has come: nothing is copied.
  Tensors gradients;
  for (const Stretch& stretch : run_->shard.stretches())
    gradients.push_back(reader.take(stretch.values.numel(), stretch.values.scalar_type()));
  for (const torch::Tensor& buffer : run_->buffers)
    buffer.add_(reader.take(buffer.numel(), buffer.scalar_type()));
  for (const torch::Tensor& counter : run_->counters)
    counter.add_(reader.take(counter.numel(), counter.scalar_type()));
  reader.end();
  run_->shard.optimizer().step(gradients);
  Worker& worker = workers_.at(rank);
  ++run_->staleness_counts[run_->step - worker.pulled];
  const int64_t made = run_->step++;
  ++worker.pushes;
  run_->progress["examples"] = run_->progress.value("examples", int64_t{0}) + examples;
  changed_.notify_all();
  wait(
      lock, caller, request, [&] { return may_go_on(worker); },
      [&] {
        return fmt::format("{} may not get further ahead (--staleness {}) of {}", worker.name,
                           run_->staleness,
                           missing([&](int, const Worker& other) { return other.pushes < worker.pushes; }));
      });
  rpc::Message answer = copies_for(rank, request);
  answer.head["made"] = true;
  answer.head["made_step"] = made;
  return answer;
}

rpc::Message Service::snapshot(Lock&, const rpc::Caller&, const rpc::Message& request) {
  require_run(request);
  const Optimizer::State state = run_->shard.optimizer().state();
  rpc::Message answer{{{"step", run_->step}, {"progress", run_->progress}, {"state", outline_of(state)}}, {}};
  for (const Stretch& stretch : run_->shard.stretches())
    answer.pieces.push_back(piece_of(stretch.values.clone()));
  append_copies(answer, run_->buffers, request);
  append_copies(answer, run_->counters, request);
  append(answer, vectors_of(state));
  return answer;
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
  worker_of(caller).finished = number_within(request.head, "fits", 0, kMost);
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

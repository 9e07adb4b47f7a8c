#include <algorithm>
#include <mutex>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/params/optimizer_state.h"
#include "tutti/params/plan.h"
#include "tutti/ps/peers.h"
#include "tutti/ps/service.h"
#include "tutti/ps/wire.h"

// The methods of a parameter server that read and update the parameters.
namespace tutti::ps {
namespace {

constexpr int64_t kMostExamples = int64_t{1} << 40;  // per push

// Checks the sizes in the head before any memory is allocated for them.
void require_as_long_as_said(const Json& head, const rpc::Message& message) {
  int64_t bytes = store::bytes_in(head.at("buffers")) + store::bytes_in(head.at("counters")) +
                  store::bytes_in(head.at("frozen")) + store::bytes_in(head.at("state").at("tensors"));
  if (head.contains("last_step")) bytes += store::bytes_in(head.at("last_step").at("tensors"));
  for (const BlockRange& range : block_ranges_from_json(head.at("block_ranges")))
    bytes += (range.end - range.begin) * static_cast<int64_t>(c10::elementSize(range.type));
  if (bytes != bytes_of(message))
    fail(ErrorKind::InvalidArgument, "the message announces {} bytes, but has {}", bytes, bytes_of(message));
}

using Tensors = std::vector<torch::Tensor>;

// The server keeps tensors of any shape as vectors, as pushes have them.
Tensors vectors_in(const Json& outlines, Reader& reader) {
  Tensors vectors;
  for (const torch::Tensor& tensor : unpack(outlines, reader)) {
    if (!tensor.defined()) fail(ErrorKind::InvalidArgument, "a buffer is undefined");
    vectors.push_back(store::elements_of(tensor));
  }
  return vectors;
}

// The workers take no values from a copy.
bool is_for_copy(const rpc::Message& request) { return request.head.value("copy", false); }

// Gives a lock up for the lifetime of this object.
class Unlocked {
 public:
  explicit Unlocked(std::unique_lock<std::mutex>& lock) : lock_(lock) { lock_.unlock(); }
  ~Unlocked() { lock_.lock(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  std::unique_lock<std::mutex>& lock_;
};

}  // namespace

Service::Run::Run(const Json& head, const rpc::Message& message,
                  std::span<const ElementwiseOptimizer> optimizers,
                  std::unique_ptr<embedding::OwnedRows> rows_of_tables,
                  std::function<std::string(int rank)> name_of_rank)
    : begun_with(head),
      id(text_in(head, "run")),
      plan{"the chief", lines_in(head, "plan")},
      kernels(agreement_in(head, "kernels")),
      mixed(head.value("mixed", false)),
      epoch(number_within(head, "epoch", -1, kMostSteps, -1)),
      workers(static_cast<int>(number_within(head, "workers", 1, kMostWorkers))),
      synchronous(text_in(head, "strategy") == "ps-sync"),
      backup(number_within(head, "backup", 0, kMostWorkers)),
      staleness(number_within(head, "staleness", -kMostSteps, kMostSteps)),
      shard(block_ranges_from_json(head.at("block_ranges")),
            optimizer_from_json(head.at("optimizer"), optimizers),
            ranges_from_json(head.value("ranges", Json::array()))),
      step(number_within(head, "step", 0, kMostSteps)),
      progress(object_in(head, "progress")),
      rows(std::move(rows_of_tables)) {
  Reader reader(message);
  for (const Section& section : shard.sections()) reader.take_into(section.values);
  buffers = vectors_in(head.at("buffers"), reader);
  counters = vectors_in(head.at("counters"), reader);
  frozen = vectors_in(head.at("frozen"), reader);
  shard.optimizer().restore(tutti::state_of(unpack_snapshot(head.at("state"), reader)));
  if (synchronous && head.at("redo").get<bool>()) {
    for (const torch::Tensor& tensor : everything()) previous.push_back(tensor.clone());
    if (rows) rows->remember_steps();
  }
  if (synchronous) {
    for (const Section& section : shard.sections()) section.grads.zero_();
  }
  const bool had_data = head.contains("last_step") && take_last_step(head.at("last_step"), reader);
  reader.end();
  if (!synchronous) return;
  sync = std::make_shared<SyncStep>(std::vector<Section>(shard.sections().begin(), shard.sections().end()),
                                    shard.optimizer(), buffers, counters,
                                    SyncOptions{.workers = workers,
                                                .lanes = number_within(head, "lanes", 1, kMostLanes),
                                                .rows = rows.get(),
                                                .name_of = std::move(name_of_rank),
                                                .had_data = had_data});
}

std::vector<torch::Tensor> Service::Run::everything() const {
  std::vector<torch::Tensor> all;
  for (const Section& section : shard.sections()) all.push_back(section.values);
  all.insert(all.end(), buffers.begin(), buffers.end());
  all.insert(all.end(), counters.begin(), counters.end());
  return all;
}

rpc::Message Service::begin(Lock&, const rpc::Caller& caller, const rpc::Message& request) {
  require_as_long_as_said(request.head, request);
  require_later_epoch(request);
  if (request.head.value("tables", false)) static_cast<void>(rows_to_begin());
  auto run = std::make_unique<Run>(request.head, request, options_.optimizers,
                                   std::exchange(rows_to_begin_, nullptr),
                                   [this](int rank) { return workers_.at(rank).name; });
  const int64_t fits = run->progress.value("fit", int64_t{0});
  run_ = std::move(run);
  notes_.clear();
  note_bytes_ = 0;
  // A worker of an earlier run with more workers has to join again, and is refused. Where workers change, all
  // have other ranks.
  std::erase_if(workers_,
                [this](const auto& entry) { return run_->epoch >= 0 || entry.first >= run_->workers; });
  for (auto& [rank, worker] : workers_) {
    worker.pushes = 0;
    worker.joined = false;
    worker.finished = std::min(worker.finished, fits);
  }
  log_.info("received {} of parameters at step {} from {}",
            human_bytes(static_cast<uint64_t>(run_->shard.bytes())), run_->step, name_of(caller));
  changed_.notify_all();
  const std::string mix = mix_of(agreement_in(request.head, "updates"), options_.kernels);
  try {
    if (!run_->mixed) refuse_mix(mix);
  } catch (const Error& error) {
    refuse_run(error);
  }
  return {{{"mix", mix}}, {}};
}

rpc::Message Service::copies_for(const rpc::Message& request) {
  rpc::Message answer{{{"step", run_->step}}, {}};
  append_copies(answer, run_->everything(), request);
  return answer;
}

// For the answer to a synchronous step. Nothing changes these tensors before the answer is sent, unless steps
// can be made without this worker; in that case they are copied.
void Service::add(rpc::Message& answer, const Tensors& tensors, const rpc::Message& request) const {
  if (run_->backup > 0) {
    append_copies(answer, tensors, request);
  } else {
    append(answer, tensors);
  }
}

void Service::add_values(rpc::Message& answer, const rpc::Message& request) const {
  answer.head["step"] = run_->step;
  add(answer, run_->everything(), request);
}

// Returns true if what the server had before its last step is the state at this step.
bool Service::is_past(int64_t step) const {
  const bool past = step + 1 == run_->step || (step == run_->step && run_->added_up == step);
  if (!past && step != run_->step) {
    fail(ErrorKind::PeerLost, "the server is at step {} and no longer has the results of step {}", run_->step,
         step);
  }
  return past;
}

rpc::Message Service::copies_at(int64_t step, const rpc::Message& request) {
  if (!is_past(step) || run_->previous.empty()) return copies_for(request);
  rpc::Message answer{{{"step", step}}, {}};
  append_copies(answer, run_->previous, request);
  return answer;
}

rpc::Message Service::pull(Lock& lock, const rpc::Caller& caller, const rpc::Message& request) {
  require_run(request);
  rank_of(caller);  // throws unless the caller has joined
  if (!request.head.contains("step")) return copies_for(request);
  const int64_t step = number_within(request.head, "step", 0, kMostSteps);
  await_step(lock, caller, request, step);
  return copies_at(step, request);
}

void Service::await_step(Lock& lock, const rpc::Caller& caller, const rpc::Message& request, int64_t step) {
  wait(
      lock, caller, request, [&] { return run_->step >= step; },
      [&] { return fmt::format("the server has not reached step {}; it is at step {}", step, run_->step); });
}

rpc::Message Service::frozen(Lock&, const rpc::Caller&, const rpc::Message& request) {
  require_run(request);
  return {Json::object(), pieces_of(run_->frozen)};
}

rpc::Message Service::push(Lock& lock, const rpc::Caller& caller, const rpc::Message& request) {
  require_run(request);
  const int rank = rank_of(caller);
  if (request.incoming != nullptr && !takes_incoming(*run_))
    fail(ErrorKind::PeerLost, "the servers have begun another run");
  return run_->synchronous ? push_synchronous(lock, caller, rank, request)
                           : push_asynchronous(lock, caller, rank, request);
}

void Service::add_up(std::optional<double> rate) {
  if (rate) run_->shard.optimizer().set_learning_rate(*rate);
  const std::vector<torch::Tensor> now = run_->everything();
  for (size_t i = 0; i < run_->previous.size(); ++i) run_->previous[i].copy_(now[i]);
  SyncStep::Result result;
  or_refuse_step([&] { result = run_->sync->add_up(run_->step); });
  run_->control_words = result.control_words;
  run_->workers_added_up = run_->workers;
  if (run_->rows) run_->row_squares = run_->rows->squares().numbers();
  run_->added_up = run_->step;
  run_->progress["examples"] = run_->progress.value("examples", int64_t{0}) + result.examples;
  changed_.notify_all();
}

// If the offers of the workers are inconsistent, discards them: all workers get the reason, and nothing
// changes.
void Service::or_refuse_step(const std::function<void()>& add) {
  const auto refuse = [&](ErrorKind kind, const char* text) {
    run_->sync->withdraw_all();
    ++run_->refusals;
    run_->why_refused.emplace(kind, first_line(text));
    changed_.notify_all();
  };
  try {
    add();
  } catch (const Error& error) {
    refuse(error.kind(), error.what());
    throw;
  } catch (const std::exception& error) {
    refuse(ErrorKind::InvalidArgument, error.what());
    throw;
  }
}

void Service::make_step(double factor) {
  run_->sync->apply(factor);
  ++run_->step;
  changed_.notify_all();
}

rpc::Message Service::push_synchronous(Lock& lock, const rpc::Caller& caller, int rank,
                                       const rpc::Message& request) {
  const int64_t step = number_within(request.head, "step", 0, kMostSteps);
  // A worker that was killed between its pushes to two servers pushes the step again after its restart.
  if (step != run_->step && step + 1 != run_->step)
    fail(ErrorKind::InvalidArgument, "{} is at step {}, the server at step {}", name_of(caller), step,
         run_->step);
  const bool scaled = request.head.value("scaled", false);
  if (run_->added_up < step) {
    try {
      take_gradients(lock, caller, rank, request, step);
    } catch (...) {
      withdraw(caller, rank, step);
      throw;
    }
  }
  if (is_for_copy(request)) return {};
  rpc::Message answer{Json::object(), {piece_of(run_->control_words)}};
  if (scaled) {
    if (run_->rows) answer.head["row_squares"] = run_->row_squares;
    add_gradients(answer, request);
  } else {
    add_values(answer, request);
  }
  return answer;
}

// The run may have been begun again meanwhile, and a worker that replaces this one may have begun to push.
void Service::withdraw(const rpc::Caller& caller, int rank, int64_t step) {
  const auto found = workers_.find(rank);
  if (found == workers_.end() || found->second.caller != caller.id) return;
  if (run_ && run_->sync && run_->added_up < step) run_->sync->withdraw(rank);
}

// Takes the gradients of a worker as they come, adds up those that all workers have sent, and waits for the
// sum of the step. With backup workers, only whole gradients are added, since another worker may take a
// place.
void Service::take_gradients(Lock& lock, const rpc::Caller& caller, int rank, const rpc::Message& request,
                             int64_t step) {
  const std::shared_ptr<Run> run = run_;
  const std::shared_ptr<SyncStep> of_epoch = run->sync;
  SyncStep& sync = *of_epoch;
  const auto deadline = deadline_of(request);
  const int64_t refusals = run->refusals;
  std::optional<double> rate;
  if (request.head.contains("rate")) rate = request.head.at("rate").get<double>();
  const auto check_step = [&] {
    if (run->refusals > refusals) throw Error(*run->why_refused);
  };
  // Reads without the lock, because the network may be slow.
  const auto read = [&](const auto& read_next) {
    if (request.incoming == nullptr) return read_next();
    auto taken = [&] {
      const Unlocked unlocked(lock);
      return read_next();
    }();
    require_present(caller, request);
    check_step();
    return taken;
  };
  const auto await = [&](const std::function<bool()>& holds, const std::function<bool(int)>& is_late) {
    const auto is_missing = [&](int other, const Worker&) { return is_late(other); };
    wait_until(
        lock, caller, request, deadline, [&] { return run->refusals > refusals || holds(); },
        [&] {
          // Then the other waiting workers must not name this one.
          if (run->late.empty())
            run->late = fmt::format("no gradients for step {} from {}", step, missing(is_missing));
          return run->late;
        });
    check_step();
  };
  Reader reader(request);
  const torch::Tensor control_word = read([&] { return sync.read_control_word(reader); });
  sync.offer_control_word(rank, step, control_word, caller.shares_memory ? 0 : bytes_of_rows(request.head));
  run->late.clear();
  or_refuse_step([&] { require_room_for_step(); });
  for (size_t segment = 0; segment < sync.segments(); ++segment) {
    if (request.incoming != nullptr)
      await([&] { return sync.has_room_for(segment); }, [&](int other) { return sync.awaits(other); });
    sync.offer(rank, segment, read([&] { return sync.read_segment(rank, control_word, segment, reader); }));
    if (run->backup > 0) continue;
    or_refuse_step([&] {
      if (sync.add_offered(step)) changed_.notify_all();
    });
  }
  sync.offer_rest(rank, read([&] { return sync.read_rest(rank, control_word, request.head, reader); }));
  ++workers_.at(rank).pushes;
  const int64_t expected =
      run->backup == 0 ? run->workers : number_within(request.head, "expected", 1, run->workers);
  if (sync.offers() >= expected) {
    add_up(rate);
    if (!request.head.value("scaled", false)) make_step(1);
  }
  await([&] { return run->added_up >= step; }, [&](int other) { return !sync.has(other); });
}

void Service::add_gradients(rpc::Message& answer, const rpc::Message& request) const {
  Tensors all;
  for (const Section& section : run_->shard.sections()) all.push_back(section.grads);
  all.insert(all.end(), run_->buffers.begin(), run_->buffers.end());
  all.insert(all.end(), run_->counters.begin(), run_->counters.end());
  add(answer, all, request);
}

// All workers pass the same factor; the first call makes the update.
rpc::Message Service::scale(Lock&, const rpc::Caller& caller, const rpc::Message& request) {
  require_run(request);
  rank_of(caller);  // throws unless the caller has joined
  const int64_t step = number_within(request.head, "step", 0, kMostSteps);
  if (step == run_->step && run_->added_up == step) make_step(request.head.at("factor").get<double>());
  // With --backup, the other workers may have made more steps in the meantime.
  const bool made = run_->backup > 0 ? step < run_->step : step + 1 == run_->step;
  if (!made)
    fail(ErrorKind::InvalidArgument, "{} is at step {}, the server at step {}", name_of(caller), step,
         run_->step);
  if (is_for_copy(request)) return {};
  rpc::Message answer;
  add_values(answer, request);
  return answer;
}

// A worker without a place waits until the step is over or a place becomes free, so that no worker gets ahead
// of the servers.
rpc::Message Service::enter(Lock& lock, const rpc::Caller& caller, const rpc::Message& request) {
  require_run(request);
  const int rank = rank_of(caller);
  const int64_t step = number_within(request.head, "step", 0, kMostSteps);
  const auto is_missing = [&](int other, const Worker&) { return !run_->entered.contains(other); };
  const auto why = [&] {
    return fmt::format("step {} needs {} workers; missing: {}", step, enough(), missing(is_missing));
  };
  const auto has_place = [&] {
    const bool is_free = run_->holder == 0 && run_->entered.size() < enough();
    return run_->entering == step && (run_->entered.contains(rank) || is_free);
  };
  if (run_->entering < step && step == run_->step) {
    run_->entering = step;
    run_->entered.clear();
  }
  wait(
      lock, caller, request, [&] { return run_->step > step || has_place(); }, why);
  if (!has_place()) {
    ++run_->dropped;
    return {{{"late", true}, {"step", run_->step}}, {}};
  }
  run_->entered.insert(rank);
  changed_.notify_all();
  wait(
      lock, caller, request, [&] { return run_->entering > step || run_->entered.size() >= enough(); }, why);
  return {{{"late", false}, {"expected", enough()}}, {}};
}

// Returns the number of workers that a step needs.
size_t Service::enough() const {
  return static_cast<size_t>(std::max<int64_t>(1, run_->workers - run_->backup));
}

// Returns false if the worker is too far ahead of the slowest worker that has not finished.
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
  wait(
      lock, caller, request, [&] { return run_->holder == 0; },
      [&] {
        return fmt::format("the chief, {}, has not finished a snapshot of the servers", whereabouts(0));
      });
  // Only server 0 receives "of", "examples" and "end", and counts with them.
  const auto end = request.head.value("end", int64_t{-1});
  if (end >= 0 && run_->step >= end) {
    rpc::Message answer = copies_for(request);
    answer.head["made"] = false;
    return answer;
  }
  const int64_t examples = number_within(request.head, "examples", 0, kMostExamples, 0);
  const int64_t of = number_within(request.head, "of", 0, run_->step, run_->step);
  Reader reader(request);
  if (const auto rate = request.head.find("rate"); rate != request.head.end())
    run_->shard.optimizer().set_learning_rate(rate->get<double>());
  // Views into the received message; nothing is copied.
  Tensors gradients;
  for (const Section& section : run_->shard.sections())
    gradients.push_back(reader.take_tensor(section.values.numel(), section.values.scalar_type()));
  // A floating buffer is a mean over the workers, to which each contributes its share.
  const double share = 1.0 / run_->workers;
  for (const torch::Tensor& buffer : run_->buffers)
    buffer.lerp_(reader.take_tensor(buffer.numel(), buffer.scalar_type()), share);
  for (const torch::Tensor& counter : run_->counters) {
    const torch::Tensor change = reader.take_tensor(counter.numel(), counter.scalar_type());
    counter.scalar_type() == torch::kBool ? counter.logical_xor_(change) : counter.add_(change);
  }
  const int64_t lanes = number_within(request.head, "lanes", 1, kMostLanes, 1);
  const embedding::RowGradients rows = rows_in(request.head, reader);
  const auto row_sums =
      run_->rows ? run_->rows->sums_in(rows, {0, lanes}) : std::vector<embedding::RowSumsView>();
  reader.end();
  Optimizer& optimizer = run_->shard.optimizer();
  optimizer.step(gradients);
  if (run_->rows) {
    run_->rows->add_up({&row_sums, 1}, lanes, 0);
    run_->rows->begin_step(run_->step);
    run_->rows->update(1, embedding::relative_rate(optimizer.learning_rate(), optimizer.options()),
                       optimizer.steps());
  }
  Worker& worker = workers_.at(rank);
  ++run_->staleness_counts[run_->step - of];
  const int64_t made = run_->step++;
  ++worker.pushes;
  ++worker.pushes_since_join;
  run_->progress["examples"] = run_->progress.value("examples", int64_t{0}) + examples;
  changed_.notify_all();
  rpc::Message answer = copies_for(request);
  answer.head["made"] = true;
  answer.head["made_step"] = made;
  answer.head["too_far_ahead"] = !may_go_on(worker);
  return answer;
}

rpc::Message Service::go_on(Lock& lock, const rpc::Caller& caller, const rpc::Message& request) {
  require_run(request);
  const Worker& worker = worker_of(caller);
  wait(
      lock, caller, request, [&] { return may_go_on(worker); },
      [&] {
        return fmt::format("{} has to wait (--staleness {}) for {}", worker.name, run_->staleness,
                           missing([&](int, const Worker& other) { return other.pushes < worker.pushes; }));
      });
  return {};
}

}  // namespace tutti::ps

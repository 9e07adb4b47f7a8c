#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/params/plan.h"
#include "tutti/ps/peers.h"
#include "tutti/ps/service.h"
#include "tutti/ps/wire.h"
#include "tutti/rpc/buffers.h"

// The part of a parameter server that admits workers to the run, if they fit it and there is memory for them.
namespace tutti::ps {

rpc::Message Service::join_run(Lock& lock, const rpc::Caller& caller, const rpc::Message& request) {
  const int rank = static_cast<int>(number_within(request.head, "rank", 0, kMostWorkers));
  if (!run_) fail(ErrorKind::PeerLost, "{}", kNoRun);
  require_epoch(request);
  if (!run_->refused.empty()) fail(ErrorKind::InvalidArgument, "{}", run_->refused);
  try {
    admit(lock, caller, request, rank);
  } catch (const Error& error) {
    // The others cannot go on without this worker. A later replacement of a worker does not end the run.
    const bool is_late = error.kind() == ErrorKind::Timeout || error.kind() == ErrorKind::PeerLost;
    if (!is_late && rank < run_->workers && !workers_.contains(rank)) refuse_run(error);
    throw;
  }
  Worker& worker = workers_[rank];
  worker.caller = caller.id;
  worker.name = name_of(caller);
  worker.hello = caller.hello;
  worker.shares_memory = caller.shares_memory;
  worker.requests = 0;
  worker.left = false;
  worker.pushes_since_join = 0;
  worker.joined = true;
  if (std::exchange(worker.lost, false)) {
    log_.info("{} is back", worker.name);
    tell(fmt::format("{} is back", worker.name));
  }
  changed_.notify_all();
  return {{{"run", run_->id},
           {"step", run_->step},
           {"progress", run_->progress},
           {"added_up", run_->added_up},
           {"workers_added_up", run_->workers_added_up},
           {"numbers_added_up", run_->control_words.defined() ? run_->control_words.numel() : 0},
           {"mix", mix_of(run_->kernels, agreement_in(request.head, "kernels"))}},
          {}};
}

// Throws if the worker must not join the run.
void Service::admit(Lock& lock, const rpc::Caller& caller, const rpc::Message& request, int rank) {
  require_same(run_->plan, {name_of(caller), lines_in(request.head, "plan")});
  if (!run_->mixed) refuse_mix(mix_of(run_->kernels, agreement_in(request.head, "kernels")));
  if (rank >= run_->workers)
    fail(ErrorKind::InvalidArgument, "{} has rank {}, but the chief's cluster has {} workers",
         name_of(caller), rank, run_->workers);
  await_place(lock, caller, request, rank);
  require_room(rank, caller);
}

// Waits until the previous worker of this rank is known to be gone: at once if it was killed, after the
// keepalive timeout if its machine vanished. If it is alive, two tasks have the same index, which is an
// error.
void Service::await_place(Lock& lock, const rpc::Caller& caller, const rpc::Message& request, int rank) {
  constexpr int64_t kUntilNoticed = 25000;  // ms: two keepalive intervals of ten seconds, and a margin
  const auto found = workers_.find(rank);
  if (found == workers_.end()) return;
  const Worker& other = found->second;
  if (other.caller == 0 || other.caller == caller.id) return;
  // If it is the same process again, its last connection is broken, but this end has not noticed yet.
  const bool is_itself = other.hello == caller.hello;
  const int64_t requests = other.requests;
  const std::string who = same_index(other.name, name_of(caller));
  const auto is_alive = [&] { return !is_itself && (other.requests != requests || other.left); };
  rpc::Message question{request.head, {}};
  if (!is_itself)
    question.head["patience"] =
        std::min(kUntilNoticed, number_within(request.head, "patience", 0, kLongestPatience));
  ++places_awaited_;
  try {
    wait(
        lock, caller, question, [&] { return other.caller == 0 || is_alive(); }, [&] { return who; });
    --places_awaited_;
  } catch (const Error& error) {
    --places_awaited_;
    if (error.kind() != ErrorKind::Timeout || is_itself) throw;
    fail(ErrorKind::InvalidArgument, "{}", who);
  }
  if (is_alive()) fail(ErrorKind::InvalidArgument, "{}", who);
}

// The server holds what has arrived of the gradients of a synchronous step until all workers have pushed the
// same part; gradients in shared memory take no room. If it did not all fit, no step would ever complete.
void Service::require_room(int rank, const rpc::Caller& caller) const {
  if (!run_->sync) return;
  std::vector<size_t> all;
  const auto add = [&](int worker) {
    all.push_back(takes_incoming(*run_) ? run_->sync->bytes_ahead(worker)
                                        : run_->sync->bytes_of_offer(worker));
  };
  if (!caller.shares_memory) add(rank);
  for (const auto& [other, worker] : workers_) {
    if (other != rank && other < run_->workers && worker.caller != 0 && !worker.shares_memory) add(other);
  }
  std::sort(all.rbegin(), all.rend());
  all.resize(std::min(all.size(), enough()));
  const size_t bytes = std::accumulate(all.begin(), all.end(), size_t{0});
  const size_t needed = bytes + bytes / rpc::kSpareOfBuffer;
  const size_t available = options_.shared->reserve(this, needed);
  if (needed <= available) return;
  fail(ErrorKind::Overloaded,
       "not enough memory for the gradients of {}: the gradients of {} workers need {} in a step of ps-sync, "
       "but this server may use at most {}. Start more servers (--ps), so that each has a smaller part, or "
       "fewer workers",
       name_of(caller), all.size(), human_bytes(bytes), human_bytes(available));
}

// The gradients of rows stay until the step is added up. Their size is known when a worker begins to push: if
// they did not all fit, the last ones would wait for memory until the step timed out.
void Service::require_room_for_step() const {
  size_t bytes = run_->sync->row_bytes();
  if (bytes == 0) return;
  for (int rank = 0; rank < run_->workers; ++rank) bytes += run_->sync->bytes_ahead(rank);
  const size_t needed = bytes + bytes / rpc::kSpareOfBuffer;
  const size_t available = options_.shared->reserve(this, needed);
  if (needed <= available) return;
  fail(ErrorKind::Overloaded,
       "not enough memory for the gradients of embedding rows: step {} needs {}, but this server may use at "
       "most {}. Start more servers (--ps), so that each has fewer rows, or use a smaller --batch",
       run_->step, human_bytes(bytes), human_bytes(available));
}

}  // namespace tutti::ps

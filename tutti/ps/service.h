#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tutti/base/agreement.h"
#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/log.h"
#include "tutti/base/waiting.h"
#include "tutti/embedding/owned_rows.h"
#include "tutti/ps/placement.h"
#include "tutti/ps/sync_step.h"
#include "tutti/rpc/host.h"
#include "tutti/transport/executor.h"

namespace tutti::ps {

class Service;

// Shared by the groups of workers of one server: its memory, and the callers that it has refused.
// Thread-safe.
class SharedByGroups {
 public:
  explicit SharedByGroups(size_t memory = rpc::HostOptions{}.memory) : memory_(memory) {}

  // Reserves memory for the pending requests of a group's service, in place of what it had before, and
  // returns what is available to it. If that is less than `bytes`, reserves nothing.
  size_t reserve(const Service* service, size_t bytes);
  // The callers that the server's host has refused.
  const std::shared_ptr<rpc::RefusedCallers>& refused() const { return refused_; }

 private:
  const size_t memory_;
  const std::shared_ptr<rpc::RefusedCallers> refused_ = std::make_shared<rpc::RefusedCallers>();
  std::mutex mutex_;
  std::map<const Service*, size_t> reserved_;  // guarded by mutex_
};

struct ServiceOptions {
  // The names and addresses of the group's workers by rank, for messages about workers that have not come.
  struct Member {
    std::string task;     // "worker/1"
    std::string address;  // "h:2224"; "": unknown
    std::string text() const { return address.empty() ? task : task + " (" + address + ")"; }
  };
  std::vector<Member> workers = {};
  // "the group of worker/1 and worker/3", for messages; "": the group is all workers of the job.
  std::string group = {};
  // After the end of the job, how long to wait for workers that were lost and may be on their way back. 0:
  // not at all.
  std::chrono::milliseconds patience{0};
  // After the end of the job, how long a connected worker may take to finish its steps.
  std::chrono::milliseconds timeout = std::chrono::hours(1);
  std::shared_ptr<SharedByGroups> shared = std::make_shared<SharedByGroups>();
  // The optimisers besides those of torch::optim that a chief may ask for.
  std::vector<ElementwiseOptimizer> optimizers = {};
  // The name of this task, and what it says of its kernels (Kernels::lines_of_updates()).
  Agreement kernels = {};
};

// A parameter server for one group of workers (GroupServices has one for each). The group's chief describes
// the model to it, so that one server serves any program. It holds one part of the parameters and their
// optimiser, and makes the updates. Server 0 also holds what exists once: the global step, the buffers, which
// workers have finished, and the chief's notes. The methods:
//
// - state: returns {begun, run, step, cpu_seconds, ...} to any caller.
// - begin: from the chief: the values of the part, the optimiser's state, and the settings of the steps. If
//   the chief sends the kernels of updates, checks that this server has the same; if not, the run ends
//   for all, unless the kernels may differ.
// - await: waits until the chief has begun the run or, of the run that the caller has joined, until as many
//   workers have joined as a step needs; returns who is missing when the caller's patience ends.
// - join: from a worker, once per connection. Checks that the worker has the same plan and kernels, that
//   no other task has its index, and that there is memory for its gradients. If a worker that was never in
//   the run fails the first or the last check, the run cannot be made as configured: it ends for all, with
//   the reason.
// - pull: returns the present values, or waits until a given step and returns its values.
// - frozen: returns the chief's values of the parameters that are not trained.
// - push: the contribution of one worker's lanes. Synchronous: waits until the step is made. Asynchronous:
//   makes an update at once. Both return the new values.
// - scale: if gradients are clipped, push returns the mean gradient, and scale makes the update with it.
// - go_on: asynchronous, with a bound on staleness: waits until this worker is no longer too far ahead.
// - enter: if steps may leave workers behind: takes a place in this step (server 0). A worker without a place
//   waits until the step is made.
// - agree: lines under a key that must be the same from all workers of the run; the first worker defines
// them.
// - abandon: from a worker that leaves its epoch because of an error.
// - regroup: from the chief of a new epoch (comm/members.h): the run goes on with other workers. They join
//   anew, and whatever is of an earlier epoch is refused. Once a worker of the epoch is lost or late, all
//   requests of the epoch fail.
// - hand_over: from that chief: returns everything that this server holds, as a request of begin for a server
//   that was started again. A copy of the part (GroupServices) gets the same requests as its server, but for
//   those that only read, and so has the same.
// - tables, rows, rows_saved: from the chief, before begin: the sharded tables of the run; values of their
//   rows; and that a checkpoint has all of the rows so far.
// - read_rows: returns rows, the present ones or those at a given step.
// - all_rows, sum_rows: return copies of all rows of this server, or their checksum.
// - hold, release: from the chief to server 0, around a snapshot: no update begins in between. hold waits for
//   the step in progress and returns the point that every server has to reach: the step, and the number of
//   pushes of each worker.
// - snapshot: waits until that point and returns values and the optimiser's state for a checkpoint; a server
//   that is already ahead of it returns is_ahead instead. If asked to keep the optimiser's state, the server
//   returns only its outline.
// - shares: returns whether this server sees the chief's mark of a folder (store/shared_files.h).
// - write: starts to write the state that was kept into that folder, in the background.
// - note, read: JSON values under a key, from the chief to all, until the next begin.
// - progress: the chief's data that belong to the run.
// - finish, await_finish: the worker has pushed its last update of a fit; waits until all workers have.
// - leave: the worker does not come back.
// - end: the job is done when no caller is connected and no lost worker is expected back any more.
// - stop: the job is done at once.
//
// The chief is told with its answers which workers were lost and which have come back ("news" in their
// heads).
//
// Thread-safe.
class Service final : public rpc::Service {
 public:
  explicit Service(Log log, const ServiceOptions& options = {})
      : log_(std::move(log)),
        options_(options),
        patience_(options.patience),
        reminder_(log_, options.patience) {}

  ~Service() override { options_.shared->reserve(this, 0); }
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  rpc::Message serve(const rpc::Caller& caller, const std::string& method,
                     const rpc::Message& request) override;
  bool takes_incoming(const rpc::Caller& caller, const std::string& method) const override;
  void gone(const rpc::Caller& caller) override;

  // Waits up to `patience` and returns true if the job is done: it was ended and all callers have left, or
  // stop was called. Throws Timeout if, after the end, a worker did not finish or come back in time. Logs
  // which tasks are missing.
  bool join_for(std::chrono::milliseconds patience);
  // Ends the job without waiting for workers that were lost.
  void end();
  // Ends the job at once: callers that wait are told that the server was stopped.
  void stop();
  int callers() const;
  // Returns true if the chief has begun a run that is not over.
  bool has_run() const;

 private:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;
  using Method = rpc::Message (Service::*)(Lock&, const rpc::Caller&, const rpc::Message&);
  static constexpr const char* kNoRun = "the server was restarted and has not received the parameters yet";

  // The run that the chief has begun.
  struct Run {
    Run(const Json& head, const rpc::Message& message, std::span<const ElementwiseOptimizer> optimizers,
        std::unique_ptr<embedding::OwnedRows> rows_of_tables,
        std::function<std::string(int rank)> name_of_rank);
    // Returns values, buffers and counters, in this order.
    std::vector<torch::Tensor> everything() const;
    // Convert what belongs to the last step that was added up. take_last_step() returns whether a worker had
    // data in it.
    Json pack_last_step(std::vector<rpc::Piece>& pieces) const;
    bool take_last_step(const Json& last, Reader& reader);

    const Json begun_with;    // the head of the request
    const std::string id;     // new after each return to a checkpoint
    const Agreement plan;     // the chief's, as all others
    const Agreement kernels;  // without lines, those of others may be any
    const bool mixed;         // kernels may differ (--mixed-machines)
    int64_t epoch;            // of the workers; -1: they never change
    std::string over;         // not "": why the epoch is over
    int workers;
    const bool synchronous;
    const int64_t backup;     // synchronous: how many workers a step may leave behind
    const int64_t staleness;  // asynchronous: maximum number of steps ahead of the slowest; < 0: none
    Shard shard;
    std::vector<torch::Tensor> buffers;
    std::vector<torch::Tensor> counters;
    std::vector<torch::Tensor> frozen;  // parameters that are not trained; on server 0 only
    int64_t step;
    Json progress;
    // The rows of sharded tables that this server owns; null if there are none.
    const std::unique_ptr<embedding::OwnedRows> rows;
    std::shared_ptr<SyncStep> sync;  // shared with the pushes of an epoch that has ended
    // Values, buffers and counters before the last step that was added up. A worker that comes back in the
    // middle of a step needs them if some servers have made that step and others have not. Empty if that
    // cannot happen.
    std::vector<torch::Tensor> previous;
    torch::Tensor control_words;  // of the last step that was added up, by as many workers as these
    int workers_added_up = 0;
    std::vector<double> row_squares;  // its mean gradients of rows (metrics::ExactSum)
    int64_t added_up = -1;            // the index of that step
    // How often the gradients of a step were inconsistent and therefore discarded, and the last reason.
    int64_t refusals = 0;
    std::optional<Error> why_refused;
    // The error of the first worker that waited in vain for the others in this step; "": there is none.
    std::string late;
    std::set<int> entered;
    int64_t entering = -1;  // the step that `entered` belongs to
    // By key of agree(): the lines of the first worker, and its name.
    std::map<std::string, Agreement> agreed;
    uint64_t holder = 0;  // the caller that holds updates back; 0: none
    std::string refused;  // why workers with different settings ended the run; "": they did not
    std::map<int64_t, int64_t> staleness_counts;  // number of updates by the age of their values, in steps
    int64_t dropped = 0;
  };

  // A copy of the optimiser's state, from a snapshot until it is written.
  struct Kept {
    uint64_t caller;
    Optimizer::State state;
    store::NamedTensors rows;
  };

  struct Worker {
    uint64_t caller = 0;  // 0: not connected
    std::string name;
    Json hello;
    bool shares_memory = false;
    bool joined = false;            // this run
    bool lost = false;              // it was logged, and not yet that it is back
    int64_t requests = 0;           // from this caller so far
    int64_t pushes = 0;             // in this run
    int64_t pushes_since_join = 0;  // all servers count these from the same moment on
    int64_t finished = 0;           // number of finished fits
    bool left = false;              // and does not come back
  };

  rpc::Message state(Lock&, const rpc::Caller&, const rpc::Message&);
  rpc::Message begin(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message await(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message join_run(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message pull(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message frozen(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message push(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message enter(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message go_on(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message tables(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message rows(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message rows_saved(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message read_rows(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message all_rows(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message sum_rows(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message hold(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message release(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message snapshot(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message shares(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message write(Lock&, const rpc::Caller&, const rpc::Message& request);
  static std::string marked_folder(Lock& lock, const rpc::Message& request);
  rpc::Message agree(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message note(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message read(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message progress(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message finish(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message await_finish(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message end_job(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message leave(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message stop_all(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message regroup(Lock&, const rpc::Caller& caller, const rpc::Message& request);
  rpc::Message hand_over(Lock&, const rpc::Caller& caller, const rpc::Message& request);
  rpc::Message abandon(Lock&, const rpc::Caller& caller, const rpc::Message& request);

  // Returns true if the request is of the present run and epoch, which is not over.
  bool is_of_epoch(const rpc::Message& request) const;
  void require_epoch(const rpc::Message& request) const;
  void require_later_epoch(const rpc::Message& request) const;
  // If the workers change: the epoch is over for all of them, for this reason.
  void end_epoch(const std::string& why);

  rpc::Message push_synchronous(Lock&, const rpc::Caller&, int rank, const rpc::Message& request);
  rpc::Message push_asynchronous(Lock&, const rpc::Caller&, int rank, const rpc::Message& request);
  rpc::Message scale(Lock&, const rpc::Caller&, const rpc::Message& request);
  void withdraw(const rpc::Caller& caller, int rank, int64_t step);
  void add_up(std::optional<double> rate);
  void take_gradients(Lock& lock, const rpc::Caller& caller, int rank, const rpc::Message& request,
                      int64_t step);
  void or_refuse_step(const std::function<void()>& add);
  void make_step(double factor);
  rpc::Message copies_for(const rpc::Message& request);
  rpc::Message copies_at(int64_t step, const rpc::Message& request);
  void await_step(Lock& lock, const rpc::Caller& caller, const rpc::Message& request, int64_t step);
  bool is_past(int64_t step) const;
  embedding::OwnedRows& rows_to_begin();
  embedding::OwnedRows& rows_of_run() const;
  store::NamedTensors copies_of_rows(const rpc::Message& request, Json& head);
  void add(rpc::Message& answer, const std::vector<torch::Tensor>& tensors,
           const rpc::Message& request) const;
  void add_values(rpc::Message& answer, const rpc::Message& request) const;
  void add_gradients(rpc::Message& answer, const rpc::Message& request) const;
  bool may_go_on(const Worker& worker) const;
  size_t enough() const;
  void release_hold(const rpc::Caller& caller);
  void await_pushes(Lock& lock, const rpc::Caller& caller, const rpc::Message& request);

  // Waits until holds() is true, or until the deadline; returns which. Throws PeerLost if the caller has
  // gone, InvalidArgument if the run was refused.
  bool holds_in_time(Lock& lock, const rpc::Caller& caller, const rpc::Message& request,
                     Clock::time_point deadline, const std::function<bool()>& holds);
  // Waits until holds() is true. After the time in the head's "patience" (milliseconds), throws Timeout with
  // the text of late().
  void wait(Lock& lock, const rpc::Caller& caller, const rpc::Message& request,
            const std::function<bool()>& holds, const std::function<std::string()>& late) {
    wait_until(lock, caller, request, deadline_of(request), holds, late);
  }
  void wait_until(Lock& lock, const rpc::Caller& caller, const rpc::Message& request,
                  Clock::time_point deadline, const std::function<bool()>& holds,
                  const std::function<std::string()>& late);
  static Clock::time_point deadline_of(const rpc::Message& request);
  static bool takes_incoming(const Run& run);
  // Throws PeerLost unless the caller is connected and belongs to the run.
  void require_present(const rpc::Caller& caller, const rpc::Message& request) const;
  int rank_of(const rpc::Caller& caller) const;
  void require_run(const rpc::Message& request) const;
  std::string missing(const std::function<bool(int rank, const Worker&)>& is_missing) const;
  // Returns what is known of the worker of this rank: its name, and whether it is there.
  std::string whereabouts(int rank) const;
  std::string chief_without_run() const;
  std::vector<std::string> workers_not_joined() const;
  std::vector<std::string> awaited() const;
  void remind();
  void tell(const std::string& news);
  bool is_chief(const rpc::Caller& caller) const;
  Worker& worker_of(const rpc::Caller& caller) { return workers_.at(rank_of(caller)); }
  bool all_have_left() const;
  // Records the error as the reason why the run ends for all its workers, and throws it.
  [[noreturn]] void refuse_run(const Error& error);
  // Reserves memory for notes, which stay as long as the run. Throws Overloaded if there are too many.
  void take_room(size_t bytes);
  void check_who_is_late() const;
  void admit(Lock& lock, const rpc::Caller& caller, const rpc::Message& request, int rank);
  void await_place(Lock& lock, const rpc::Caller& caller, const rpc::Message& request, int rank);
  void require_room(int rank, const rpc::Caller& caller) const;
  void require_room_for_step() const;

  const Log log_;
  const ServiceOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable left_;  // for join_for(), which changed_ would wake with every push
  // All members below are guarded by mutex_.
  std::shared_ptr<Run> run_;
  std::map<int, Worker> workers_;                        // by rank
  std::unique_ptr<embedding::OwnedRows> rows_to_begin_;  // for the run that the chief is about to begin
  std::optional<Kept> kept_;
  std::map<std::string, Json> notes_;
  size_t note_bytes_ = 0;
  std::map<uint64_t, rpc::Caller> callers_;  // connected callers that have sent a request
  std::set<uint64_t> lost_;                  // callers that disconnected while serve() runs for them
  std::map<uint64_t, int> serving_;
  int places_awaited_ = 0;  // number of tasks that wait for an index that another task has
  bool ended_ = false;
  Clock::time_point ended_at_;
  std::chrono::milliseconds patience_;
  std::vector<std::string> news_;  // what the chief has not been told yet
  Reminder reminder_;
  Clock::time_point last_gone_;
  bool stopped_ = false;
  std::optional<uint64_t> stopper_;  // the caller of stop, which still has to get its answer
  // Writes parts of checkpoints. Last member, so that it ends first.
  comm::Executor writer_;
};

}  // namespace tutti::ps

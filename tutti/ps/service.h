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

#include "tutti/base/json.h"
#include "tutti/base/log.h"
#include "tutti/ps/shard.h"
#include "tutti/ps/sync_step.h"
#include "tutti/rpc/host.h"

namespace tutti::ps {

// A parameter server: what it knows of the model it is told by the chief (method "begin"), so that it serves
// any program. It holds one part of the parameters and their optimiser, and makes the updates. Server 0
// beside that keeps what there is once: the global step, the buffers, who has finished, and the chief's
// notes.
//
// state: what it has, for anybody: {begun, run, step, cpu_seconds}
// begin: the chief: the part's values, its optimiser's state, and how steps are made
// join: a worker, once a connection: waits for begin; checks that the worker has the same plan
// pull: the values as they are now, or at a step, which is waited for
// push: what one worker's lanes gave. Synchronous: waits until the step is made; asynchronous: an update at
// once. Either way the new values come back
// scale: where gradients are clipped, a push brings back the mean gradient, and this makes the update with it
// enter: where some workers may be left behind: who is in this step (server 0). Who is not waits until it is
// made
// snapshot: values and the optimiser's state, for a checkpoint
// note, read: JSON under a key: from the chief to all, until the run is begun anew
// progress: the chief's notes that go with the run
// finish: the worker's last update of a fit is in; await_finish waits until that holds for all
// leave: the worker does not come back
// end: the job is done when nobody is connected any more, and who was lost has come back and left
// stop: the same at once
//
// Thread-safe.
class Service final : public rpc::Service {
 public:
  // At the end of the job it waits so long for workers that were lost: they may be on their way back.
  explicit Service(Log log, std::chrono::milliseconds patience = {})
      : log_(std::move(log)), patience_(patience) {}

  rpc::Message serve(const rpc::Caller& caller, const std::string& method,
                     const rpc::Message& request) override;
  void gone(const rpc::Caller& caller) override;

  // Whether the job is done, within so long: everybody has left after the end, or somebody has called stop.
  bool join_for(std::chrono::milliseconds patience);
  // The end, where nobody is on the way back.
  void end();
  int callers();

 private:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;
  using Method = rpc::Message (Service::*)(Lock&, const rpc::Caller&, const rpc::Message&);

  // What the chief has begun.
  struct Run {
    Run(const Json& head, const rpc::Message& message);
    // Values, buffers, counters.
    std::vector<torch::Tensor> everything() const;

    const std::string id;  // another one each time the servers are set back
    const std::vector<std::string> plan;
    const int workers;
    const bool synchronous;
    const int64_t backup;     // synchronous: workers that a step does without
    const int64_t staleness;  // asynchronous: how many steps a worker may be ahead of the last; below 0: any
    Shard shard;
    std::vector<torch::Tensor> buffers;
    std::vector<torch::Tensor> counters;
    int64_t step;
    Json progress;
    std::optional<SyncStep> sync;
    // As it was before the step that was added up last: values, buffers, counters. For a worker that comes
    // back in the middle of a step that some servers have made and others have not. None where that cannot
    // be.
    std::vector<torch::Tensor> previous;
    torch::Tensor words;    // of the last step that was added up
    int64_t added_up = -1;  // which that is
    std::set<int> entered;
    int64_t entering = -1;                        // the step that `entered` belongs to
    std::map<int64_t, int64_t> staleness_counts;  // how many updates were of values so many steps old
    int64_t dropped = 0;
  };

  struct Worker {
    uint64_t caller = 0;  // 0: none at present
    std::string name;
    int64_t pushes = 0;    // in this run
    int64_t finished = 0;  // fits
    bool left = false;     // and does not come back
  };

  rpc::Message state(Lock&, const rpc::Caller&, const rpc::Message&);
  rpc::Message begin(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message join_run(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message pull(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message push(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message enter(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message snapshot(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message note(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message read(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message progress(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message finish(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message await_finish(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message end_job(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message leave(Lock&, const rpc::Caller&, const rpc::Message& request);
  rpc::Message stop_all(Lock&, const rpc::Caller&, const rpc::Message& request);

  rpc::Message push_synchronous(Lock&, const rpc::Caller&, int rank, const rpc::Message& request);
  rpc::Message push_asynchronous(Lock&, const rpc::Caller&, int rank, const rpc::Message& request);
  rpc::Message scale(Lock&, const rpc::Caller&, const rpc::Message& request);
  void add_up(const rpc::Message& request);
  void make_step(double factor);
  void await_sum(Lock& lock, const rpc::Caller& caller, int rank, const rpc::Message& request, int64_t step);
  rpc::Message copies_for(const rpc::Message& request);
  rpc::Message copies_at(int64_t step, const rpc::Message& request);
  void add_values(rpc::Message& answer, const rpc::Message& request);
  void add_gradients(rpc::Message& answer, const rpc::Message& request);
  bool may_go_on(const Worker& worker) const;

  // Until it holds; a caller that is gone meanwhile is a PeerLost, a run that was set back an
  // InvalidArgument, and at the end of the head's "patience" in milliseconds a Timeout with the text that
  // late() gives.
  void wait(Lock& lock, const rpc::Caller& caller, const rpc::Message& request,
            const std::function<bool()>& holds, const std::function<std::string()>& late);
  int rank_of(const rpc::Caller& caller) const;
  void require_run(const rpc::Message& request) const;
  std::string missing(const std::function<bool(int rank, const Worker&)>& is_missing) const;
  Worker& worker_of(const rpc::Caller& caller) { return workers_.at(rank_of(caller)); }
  bool all_have_left() const;

  const Log log_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable left_;  // what join_for() waits for: changed_ would wake it with every push
  // All guarded by mutex_.
  std::unique_ptr<Run> run_;
  std::map<int, Worker> workers_;  // by rank
  std::map<std::string, Json> notes_;
  size_t note_bytes_ = 0;
  std::set<uint64_t> callers_;  // those that have said something and are still there
  std::set<uint64_t> lost_;     // those that are gone while serve() is at work for them
  std::map<uint64_t, int> serving_;
  bool ended_ = false;
  std::chrono::milliseconds patience_;
  Clock::time_point last_gone_;
  bool stopped_ = false;
  uint64_t stopper_ = 0;  // who is still to hear that it is so
};

}  // namespace tutti::ps

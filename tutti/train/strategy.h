#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/base/error.h"
#include "tutti/cluster/context.h"
#include "tutti/comm/communicator.h"
#include "tutti/comm/group.h"
#include "tutti/data/batch_queue.h"
#include "tutti/lanes/lanes.h"
#include "tutti/metrics/metric.h"
#include "tutti/params/parameters.h"
#include "tutti/step/bucket_sums.h"
#include "tutti/step/control_word.h"
#include "tutti/store/report.h"
#include "tutti/train/replica.h"
#include "tutti/train/session.h"
#include "tutti/train/trainable.h"

namespace tutti {

// The result of a step.
struct StepResult {
  int64_t step = 0;  // steps made so far, including the steps of other workers
  // True if this worker made the last of these steps or took part in it. False if its gradients are still in
  // transit, or arrived when there was no step left to make.
  bool made = true;
  int64_t examples = 0;
  // The sum of the losses of all examples: one float64, still on the device. Undefined if no lane had data,
  // or if the program did not report its losses.
  torch::Tensor loss_sum = {};
  Wishes wishes = {};  // of all workers
  // The number of steps after the one that was asked for which the others have made without this worker. They
  // use the batches that this worker would have computed.
  int64_t missed = 0;
  // An audit has found a difference (--audit): nothing was changed, and the step has to be made again.
  bool again = false;

  bool has_loss() const { return examples > 0 && loss_sum.defined(); }
  // Returns the mean loss of the step's examples; throws if there is none. Waits for the device.
  double loss() const {
    if (!has_loss())
      fail(ErrorKind::InvalidArgument,
           "step {} has no loss: it had no examples, or the program did not report the loss", step);
    return loss_sum.item<double>() / static_cast<double>(examples);
  }
};

// A range of steps.
struct StepRange {
  int64_t begin = 0;
  int64_t end = 0;  // one past the last
};

// The facts about a way of training that do not change after its start.
struct StrategyFacts {
  std::string name = {};  // "allreduce"
  LaneRange lanes = {};   // of this worker
  bool in_step = true;    // all workers make every step together, and so stop after the same one
  // The number of steps that compute each lane once: the number of workers if each makes its steps alone.
  int64_t steps_per_batch = 1;
  bool restarts = false;  // after another task was lost, start() may be called in the middle of a fit
  // After another worker was lost or has come, go_on() may be called there, with which nothing is lost. With
  // `restarts`, go_on() may find that too much is lost, and start() has to follow.
  bool survives = false;
  // The parameters are held by servers: changes that a hook or the program makes in this process are lost
  // with the next step.
  bool keeps_parameters_elsewhere = false;
  // A module works on all workers together, so no lane may be without examples.
  bool needs_data_in_every_lane = false;
  // This worker's part of the batches of an evaluation, out of `evaluation_parts`; -1: it takes none.
  int evaluation_part = 0;
  int evaluation_parts = 1;
  bool chief_reads_all = false;  // only the chief has data
};

// A way of training: how a step is made from the gradients of the lanes, alone, by all-reduce, by parameter
// servers, or by a master; how the workers begin with a common state, save it, and tell each other what they
// have to know besides the steps. There is one class for each way, which owns the replica of the model. Every
// worker has to make the same calls, unless stated otherwise. Not thread-safe.
class Strategy {
 public:
  virtual ~Strategy() = default;
  virtual const Group& group() const = 0;
  // Returns true if no other task takes part in the steps.
  virtual bool is_alone() const { return group().world == 1; }
  // Valid after start().
  virtual const StrategyFacts& facts() const = 0;
  virtual Replica& replica() = 0;

  // The point at which a run begins or resumes.
  struct Start {
    Progress progress;
    int64_t lost_steps = 0;  // steps that were made, but have to be made again
    Snapshots more = {};     // of the checkpoint; see StatePart::restore
  };
  // Brings all workers to the same start: to the checkpoint that the chief's session finds, or to the current
  // state of a running training. `plan` has to be the same on all workers.
  virtual Start start(Session& session, const std::vector<std::string>& plan) = 0;
  // How far a worker is in a run that goes on with other workers than before.
  struct Standing {
    Progress progress = {};
    StepResult last = {};  // of the last step
    bool is_told = true;   // to all hooks; else to the first `hooks_told`
    int64_t hooks_told = 0;
    // Of the report.
    std::map<std::string, std::optional<double>> metrics = {};
    Json changes = Json::array();
    Snapshots more = {};    // as Start::more; of another worker
    bool has_begun = true;  // start() has returned, and all of the above is known; see go_on()
  };
  // Enters the next epoch of the group (comm::Epochs), because of this error or as planned, if the strategy
  // has one. go_on() or start() follows.
  virtual void regroup(const std::optional<Error>& /*why*/) {}
  // With StrategyFacts::survives, after regroup(): returns true on all workers if nothing of the run is lost,
  // so that go_on() can follow. Otherwise all call start(), which goes back to a checkpoint.
  virtual bool has_run() { return facts().survives; }
  // After has_run(), or in a worker that joins(), before go_on(): completes the step after `step`, the last
  // that this worker has counted, if another worker of the former epoch has made it, or may have. Returns its
  // result if this worker has not counted it. A worker without state passes -1.
  virtual std::optional<StepResult> complete_step(int64_t /*step*/) { return {}; }
  // Brings all workers of the epoch to the state of the one that is farthest. `mine` is null in a worker that
  // joins. Returns the standing that this worker has to take over, besides the parameters and the optimiser's
  // state; nullopt if it is as far as any. Standing::has_begun is false if the run has begun for nobody, or
  // too much of its state is lost: then start() has to follow on all workers.
  virtual std::optional<Standing> go_on(Session& session, const std::vector<std::string>& plan,
                                        const Standing* mine);
  // Returns true if the worker was started again while the others train, and is alone until regroup().
  virtual bool joins() const { return false; }
  // Tells a task that takes the place of a lost one later where the run stands: in which fit, and whether a
  // hook has asked to end it.
  virtual void set_progress(const Progress& /*progress*/) {}
  // Begins the steps of a fit from `step` to `end`, counted from the beginning of the feed. Returns the steps
  // of the feed that this worker uses.
  virtual StepRange begin_steps(int64_t step, int64_t end, int64_t /*feed_begin*/) { return {step, end}; }
  // Makes step number `step` (from 0): takes this worker's lanes from the queue, in order, and updates the
  // parameters. A step that fails has not changed them. The wishes of this worker are sent to all others.
  virtual StepResult step(int64_t step, const Wishes& wishes, data::BatchQueue& queue,
                          const LaneObserver& observe) = 0;
  // Waits until all pending requests to other tasks have finished, without applying their results. Afterwards
  // the connections may be used by other callers. Throws the error of a failed request, as finish() will.
  virtual void settle() {}
  // Ends a training after its last step: gives all workers the same weights, and sets `progress` to the end.
  virtual void finish(Progress& /*progress*/) {}
  // Compares the hash of the weights after `step` with that of each worker that computes the same weights.
  // Throws DataLoss that names the worker whose weights are others.
  virtual void require_same_weights(int64_t /*step*/, const std::string& /*sha256*/) {}
  // Before a checkpoint of a step at which every run saves one: drops rows of tables that were not used.
  virtual void drop_unused_rows(int64_t /*step*/) {}
  // Saves a checkpoint (Session::save()) that includes `more`, which the chief's checkpoint has from itself
  // or, as for random generators, from all workers.
  virtual void save(Session& session, const Progress& progress, const Snapshots& more) = 0;
  // Waits until the chief has written all checkpoints. Throws, on all connected workers, if it could not.
  virtual void finish_saving(Session& session) { session.finish_saving(); }

  // Calls `make` on the chief, while the other workers wait, and returns its result on all of them. If it
  // throws, all throw the same Error, and may continue. `what` names the value.
  using MakeValue = std::function<Json()>;
  virtual Json share(const std::string& what, const MakeValue& make) = 0;
  // Compares facts, one per line. Throws InvalidArgument that says what differs between the workers.
  virtual void require_same(const std::vector<std::string>& /*plan*/) {}
  // Returns the rows of sharded embeddings (Training::rows()).
  virtual Snapshot rows() { return {}; }
  // In an evaluator: takes the rows of sharded embeddings of a checkpoint (Session::load()).
  virtual void take_rows(const Session::Start& /*start*/) {}
  // Sets the values of the report that concern the steps.
  virtual void fill(store::Report& report) const = 0;
  // Writes the file of --timeline if the run ends here but the process may continue.
  virtual void write_timeline() = 0;
  // Tells the other workers, if they are connected, that this one cannot continue, and why. Does not throw.
  virtual void abandon(const std::string& /*why*/) noexcept {}
};

// Options of make_strategy().
struct StrategyOptions {
  // Empty: all workers of the job, connected as the flags say. With a communicator: all-reduce, also if there
  // are servers.
  std::optional<Group> group = {};
  double clip_norm = 0;  // the maximum norm of the mean gradient; 0: no limit

  // Of a loop of the program's own, which may make steps before the start:
  int64_t lanes = 0;
  std::optional<ReducerOptions> reducer = {};  // of all-reduce; empty: as the flags say
  std::vector<std::string> plan = {};          // the facts that have to be the same on all workers
};

// Makes the strategy of --strategy. The context must outlive it.
std::unique_ptr<Strategy> make_strategy(const Context& context, const Trainable& model,
                                        const OptimizerOptions& optimizer, const StrategyOptions& options);

// Returns the message of a chief to the others: the result of `make`, or its exception. result_of() returns
// the result, or throws the Error.
Json outcome_of(const Strategy::MakeValue& make);
Json result_of(const Json& outcome);

// Returns the facts that a resumed run must share with its checkpoint, for any kind of training.
RunFacts facts_of(const Context& context, const ReducerOptions& reducer, double clip_norm, int world,
                  const Parameters& parameters);

// Adds what a report says of sharded tables: the hash of the weights covers the checksum of the rows.
void add_rows(store::Report& report, const std::string& checksum,
              const std::map<std::string, embedding::GrowthCounts>& counts);

}  // namespace tutti

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/data/feed.h"
#include "tutti/metrics/metric.h"
#include "tutti/params/parameters.h"
#include "tutti/store/report.h"
#include "tutti/train/replica.h"
#include "tutti/train/session.h"
#include "tutti/train/strategy.h"

namespace tutti {

// The workers of a run, seen from one of them: how they agree on a common start, and what they exchange
// besides the steps, which are made by the Strategy. Every worker has to make the same calls, unless stated
// otherwise. Not thread-safe.
class Team {
 public:
  virtual ~Team() = default;
  virtual int world() const = 0;
  // Returns true if no other task takes part in the steps.
  virtual bool is_alone() const { return world() == 1; }
  virtual bool is_chief() const = 0;

  // Sets where the parameters' vectors are allocated, and which part of the optimiser's state this worker
  // has. Called before the replica is made.
  virtual void place(ReplicaOptions& options) = 0;

  // Brings all workers to the same start: to the checkpoint that the chief's session finds, or to the current
  // state of a running training. `plan` has to be the same on all workers.
  struct Start {
    Progress progress;
    std::unique_ptr<Strategy> strategy;
    int64_t lost_steps = 0;  // steps that were made, but have to be made again
  };
  virtual Start start(Session& session, Replica& replica, const std::vector<std::string>& plan) = 0;
  // Compares the facts of a fit, one per line, if every worker has its own data. Calls `make` only if it is
  // needed, since it has to read data. Throws InvalidArgument that says what differs.
  using MakePlan = std::function<std::vector<std::string>()>;
  virtual void require_same_fit(const MakePlan& make) = 0;
  // Returns true if a worker that has lost another task may call start() again in the middle of a fit.
  virtual bool can_start_again() const = 0;

  // Returns true if the parameters are held by servers: changes that a hook or the program makes in this
  // process are lost with the next step.
  virtual bool keeps_parameters_elsewhere() const { return false; }

  // Tells a task that takes the place of a lost one later where the run stands: in which fit, and whether a
  // hook has asked to end it.
  virtual void set_progress(const Progress& progress) = 0;
  // Writes a checkpoint, and returns when it has been written.
  virtual void save(Session& session, Replica& replica, const Progress& progress) = 0;
  // Ends a fit after its last step: gives all workers the same weights, and sets `progress` to the end.
  virtual void finish_fit(Strategy& strategy, Progress& progress) = 0;

  // This worker's part of the batches of an evaluation, out of `parts`; none if part is -1.
  struct Share {
    int part = 0;
    int parts = 1;
  };
  virtual Share share_of_evaluation() const = 0;
  // Merges the counts of all workers, on each of them.
  virtual void merge(metrics::Metric& metric) = 0;

  // Returns true if a module works on all workers together, so that no lane may be without examples.
  virtual bool needs_data_in_every_lane() const = 0;
  // Sets the values of the report that concern the steps.
  virtual void fill(store::Report& report) const = 0;
  // Writes the file of --timeline if the run ends here but the process may continue.
  virtual void write_timeline() = 0;
  // Tells the other workers that this one cannot continue, and why. Does not throw.
  virtual void abandon(const std::string& why) noexcept = 0;
};

}  // namespace tutti

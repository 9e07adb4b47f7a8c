#pragma once

#include <cstdint>
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

// The workers of a run, as one of them sees them: how they come to the same start, and what they tell each
// other beside the steps. What they do in the steps is the strategy's. Every worker calls the same, unless it
// says otherwise. Not thread-safe.
class Team {
 public:
  virtual ~Team() = default;
  virtual int world() const = 0;
  // Nobody else has a part in the steps.
  virtual bool is_alone() const { return world() == 1; }
  virtual bool is_chief() const = 0;

  // Where the parameters' vectors are to live, and which part of the optimiser's state is this worker's;
  // before there are any.
  virtual void place(ReplicaOptions& options) = 0;

  // All start from what the chief's session finds, or from where a run is that goes on. `plan` has to be the
  // same on all.
  struct Start {
    Progress progress;
    std::unique_ptr<Strategy> strategy;
    int64_t lost_steps = 0;  // steps that were made, and have to be made again
  };
  virtual Start start(Session& session, Replica& replica, const std::vector<std::string>& plan) = 0;
  // What a fit is made of, a line each, where all make the same steps. InvalidArgument says what differs.
  virtual void require_same(const std::vector<std::string>& plan) = 0;
  // A worker that has lost another task may start() again, in the middle of a fit.
  virtual bool can_start_again() const = 0;

  // Another fit than the one that the run was found in.
  virtual void begin_fit(const Progress& progress) = 0;
  // Writes a checkpoint, and returns when it is there.
  virtual void save(Session& session, Replica& replica, const Progress& progress) = 0;
  // The steps of a fit are made: the weights are the same on all. `progress` is where they ended.
  virtual void finish_fit(Strategy& strategy, Progress& progress) = 0;

  // Which part of so many of an evaluation's batches is this worker's; none where part is -1.
  struct Share {
    int part = 0;
    int parts = 1;
  };
  virtual Share share_of_evaluation() const = 0;
  // What all have counted, on each of them.
  virtual void merge(metrics::Metric& metric) = 0;

  // Some module works on all workers together, and cannot go without examples.
  virtual bool needs_data_in_every_lane() const = 0;
  // What there is to say of the steps.
  virtual void fill(store::Report& report) const = 0;
  // Where the run ends here and the process may live on.
  virtual void write_timeline() = 0;
  // This worker goes no further, and why: the others hear of it. Does not throw.
  virtual void abandon(const std::string& why) noexcept = 0;
};

}  // namespace tutti

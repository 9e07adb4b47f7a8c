#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "tutti/base/config.h"
#include "tutti/base/log.h"
#include "tutti/base/timeline.h"
#include "tutti/cluster/identity.h"

namespace tutti {

// Which task this process is, and its configuration: all of a Context that needs no LibTorch. A value: copies
// share the log and the timeline. Thread-safe.
class TaskContext {
 public:
  // `values` has the value of each flag, or is empty. `listener` is called with each line of the log.
  TaskContext(RunConfig config, Identity identity, const FlagValues& values = {},
              const Log::Listener& listener = {});
  // Returns a copy at another place among the workers, for the time until they change again.
  TaskContext at(const Membership& membership) const;

  int rank() const { return identity_.membership.rank; }
  int world() const { return identity_.membership.world; }
  int local_rank() const { return identity_.membership.local_rank; }
  int local_world() const { return identity_.membership.local_world; }
  // Returns true in the worker that writes what is to be written once: rank 0 or, with `tutti run --min`, if
  // that was lost, another one. False in an evaluator.
  bool is_chief() const { return *chief_; }
  void set_chief(bool is_chief) const { *chief_ = is_chief; }
  const Task& task() const { return identity_.task; }
  const ClusterSpec& cluster() const { return identity_.cluster; }
  const Identity& identity() const { return identity_; }

  // Returns the rank of a worker. Throws InvalidArgument if the job has no such worker.
  int rank_at(const Task& task) const;
  // Returns the cluster and this task as the text of the environment variable TF_CONFIG, or "" if the
  // launcher provides no addresses (MPI, Slurm, torchrun).
  std::string tf_config() const;
  // Throws InvalidArgument if this task does not train: a parameter server or an evaluator.
  void require_worker() const;

  const RunConfig& config() const { return config_; }
  // All flags, standard flags and flags of the program, with their values as text. The secret is hidden.
  const FlagValues& flag_values() const { return flag_values_; }
  // Returns the flags that have to be the same on all tasks, one line each: "--batch 32".
  std::vector<std::string> shared_flags() const;
  const Log& log() const { return log_; }
  // True after the workers have been connected, which happens once (comm/connect.h).
  std::atomic<bool>& connected() const { return *connected_; }
  // Records the spans of this process with --timeline; else null.
  Timeline* timeline() const { return timeline_.get(); }

 protected:
  void set_config(RunConfig config);

  RunConfig config_;
  FlagValues program_flags_;  // flags that the program has added
  FlagValues flag_values_;
  Identity identity_;
  Log log_;
  // The copies share these.
  std::shared_ptr<Timeline> timeline_;
  std::shared_ptr<std::atomic<bool>> chief_ = std::make_shared<std::atomic<bool>>(identity_.is_chief);
  std::shared_ptr<std::atomic<bool>> connected_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace tutti

#pragma once

#include <cstdint>
#include <optional>

#include "tutti/base/every.h"
#include "tutti/cluster/context.h"
#include "tutti/params/distributed_optimizer.h"
#include "tutti/params/parameters.h"
#include "tutti/train/run_folder.h"

namespace tutti {

// Checkpoints of a training loop of one's own: in --logdir, as --resume, --checkpoint-every and --keep say;
// without --logdir none. The chief reads and writes them, so that the other workers need not see its files;
// they wait for it, and hear why if it cannot. They are what the trainer writes, too. All references outlive
// this.
class LoopCheckpoints {
 public:
  LoopCheckpoints(const Context& context, Parameters& parameters, DistributedOptimizer& optimizer);

  // Restores the newest whole one, on every worker; returns the steps that are done, 0 where there is none.
  // Every worker calls it, in place of broadcast_from(0).
  int64_t resume();
  // So many steps are done: saves where it is due. Every worker calls it, and save().
  void after_step(int64_t steps);
  void save(int64_t steps);

 private:
  bool saves() const { return !context_.flags().logdir.empty(); }
  bool is_due(int64_t steps) const;

  const Context& context_;
  Parameters& parameters_;
  DistributedOptimizer& optimizer_;
  const Every every_;
  Due due_;
  std::optional<RunFolder> folder_;  // of the chief
};

}  // namespace tutti

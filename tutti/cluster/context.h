#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include <c10/core/Device.h>

#include "tutti/base/environment.h"
#include "tutti/base/flags.h"
#include "tutti/base/log.h"
#include "tutti/base/timeline.h"
#include "tutti/cluster/identity.h"

namespace tutti {

// Who this process is, where it runs and what it was asked to do: built once in main and passed on, never
// global. Immutable but for the membership; cheap to read from any thread.
class Context {
 public:
  // Finds the device and the number of threads; `identity` comes from discover().
  Context(Flags flags, Identity identity);

  // The same task with another --logdir and --resume, for one of several trainings of a program.
  Context with_run(const std::string& logdir, const std::string& resume) const;

  int rank() const { return identity_.membership.rank; }
  int world() const { return identity_.membership.world; }
  int local_rank() const { return identity_.membership.local_rank; }
  int local_world() const { return identity_.membership.local_world; }
  bool is_chief() const { return identity_.is_chief; }
  const Task& task() const { return identity_.task; }
  const ClusterSpec& cluster() const { return identity_.cluster; }
  const Identity& identity() const { return identity_; }

  const Flags& flags() const { return flags_; }
  const Log& log() const { return log_; }
  // Whether the workers have been connected, which is done once (comm/connect.h).
  std::atomic<bool>& connected() const { return *connected_; }
  // Where what this process does is noted down, with --timeline; else null.
  Timeline* timeline() const { return timeline_.get(); }
  // One GPU per local rank, or the CPU; what --device says goes first.
  c10::Device device() const { return device_; }
  // Threads inside one kernel: --threads, else share_of_cores(). Fixed, since kernels may sum in another
  // order. Nothing is set by building a Context: tutti::run() does that.
  int threads() const { return threads_; }
  // The number of lanes: --lanes, else one for every worker that computes, which a master does not.
  int64_t lanes() const {
    if (flags_.lanes > 0) return flags_.lanes;
    return flags_.strategy == "in-graph" && world() > 1 ? world() - 1 : world();
  }

 private:
  Flags flags_;
  Identity identity_;
  Log log_;
  std::shared_ptr<Timeline> timeline_;  // shared by the copies of this
  std::shared_ptr<std::atomic<bool>> connected_ = std::make_shared<std::atomic<bool>>(false);  // likewise
  c10::Device device_;
  int threads_;
};

}  // namespace tutti

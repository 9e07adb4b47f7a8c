#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/simulation/calls.h"
#include "tests/simulation/disk.h"
#include "tests/simulation/mistakes.h"
#include "tests/simulation/process.h"
#include "tutti/base/test_folder.h"
#include "tutti/store/checkpoint.h"

namespace tutti::simulation {

struct SavingResult {
  std::string violation;  // or ""
  uint64_t log_hash = 0;
  int64_t saved = 0;
  int64_t failed = 0;  // saves
  int64_t resumed = 0;
  int64_t kills = 0;
  int64_t stops = 0;
  int64_t power_losses = 0;
  int64_t replaced = 0;  // chiefs that were stopped for so long that another one began
};

// A job that saves checkpoints on a simulated disk, with the production code of tutti/store: a chief that
// trains and saves, and writers that add files of their own, as servers do. The processes are killed and
// stopped at any call, the power fails, the disk is full or slow. A chief that is lost is followed by the
// next one, which goes on from the newest checkpoint. Not thread-safe; one at a time.
class SavingJob {
 public:
  SavingJob(uint64_t seed, Mistake mistake, bool prints);
  ~SavingJob();

  // Runs until all steps are made, or to the first broken promise.
  SavingResult run();

 private:
  struct Scenario {
    int64_t steps = 0;
    int64_t every = 1;  // steps between two checkpoints
    int keep = 1;
    int writers = 0;
    int faults = 0;
    int power_losses = 0;
    int full = 0;  // times that the disk is full for a while
    double slow_chance = 0;
    Time slowest = 0;   // of a call
    Time patience = 0;  // with a chief that does nothing
    Time calm_from = 0;
    double fault_chance = 0;  // at each call
    double kill_share = 0;
  };
  // The chief asks a writer to add its file.
  struct Order {
    std::string folder;
    int64_t step = 0;
  };
  struct Writer {
    std::unique_ptr<Process> process;
    std::shared_ptr<std::atomic<bool>> is_lost;
    std::vector<Order> orders;
    int64_t waits = 0;
  };

  static Scenario draw(Random& random);
  void plan_faults();
  // The processes.
  void start_chief();
  void start_writer(size_t index);
  void train(Process& process);
  void serve(Process& process, Writer& writer);
  int64_t resume(const store::CheckpointDir& checkpoints);
  void save(Process& process, store::CheckpointDir& checkpoints, int64_t step);
  void watch_chief();
  bool is_former(const Process& process) const;
  // Returns true for what others see of the checkpoints.
  bool is_visible(const std::string& path) const;
  // Failures.
  int before(Process& process, const FileCall& call);
  void after(Process& process, const FileCall& call);
  bool strikes(Process& process, const FileCall& call);
  void lose_power();
  void require_tidy();

  World world_;
  const Scenario scenario_;
  const Mistake mistake_;
  const TestFolder folder_;
  const std::string logdir_;
  Disk disk_;
  Calls calls_;
  std::vector<std::unique_ptr<Process>> chiefs_;  // the newest is the last
  const Process* owner_ = nullptr;                // the chief that had the lock last
  int first_life_ = 0;                            // from those before, the lock was taken away
  int taker_life_ = 0;                            // the same, or is just being taken away
  std::vector<Writer> writers_;
  std::vector<std::unique_ptr<Process>> former_;  // writers
  Time last_sign_ = 0;                            // of the chief
  int64_t promised_ = 0;  // the step of the newest checkpoint that was reported as saved
  int64_t troubles_ = 0;  // anything for which a save may fail
  int slow_calls_ = 0;    // that are under way
  int faults_ = 0;        // left
  bool is_full_ = false;
  bool is_done_ = false;
  SavingResult result_;
};

}  // namespace tutti::simulation

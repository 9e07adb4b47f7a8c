#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/simulation/checks.h"
#include "tests/simulation/mistakes.h"
#include "tests/simulation/network.h"
#include "tests/simulation/process.h"
#include "tests/simulation/state.h"
#include "tutti/step/step_commit.h"
#include "tutti/transport/member_epochs.h"

namespace tutti::simulation {

// The program that all workers run: trainings (fits) of several steps each.
struct Program {
  int64_t fits = 1;
  int64_t steps_per_fit = 10;
  int64_t lanes = 4;
  Time step_time = 20 * kMillisecond;  // the longest of a step's computation
  Time timeout = kSecond;              // --timeout
  bool shares_memory = false;          // each worker updates its part, as with SharedSlots
  int64_t steps() const { return fits * steps_per_fit; }
};

// The memory that the workers of an epoch share, and that outlives each of them. A worker writes only its
// part.
struct SharedMemory {
  // Written in two halves: torn in between.
  struct Written {
    uint64_t first = 0;
    uint64_t second = 0;
    bool is(uint64_t value) const { return first == value && second == value; }
  };
  struct Rank {
    Written weights;
    std::array<Written, 2> slots;  // the copies
  };
  uint64_t updated = 0;
  uint64_t taken = 0;
  std::vector<Rank> ranks;
};

// What a worker uses of its surroundings.
struct Surroundings {
  const Program& program;
  Network& network;
  std::map<uint64_t, SharedMemory>& memories;  // by epoch
  Checks& checks;
  Mistake mistake = Mistake::None;
  int least = 1;  // --min
  // Called at each place at which a process may be killed or stopped.
  std::function<void(Process&, const char* place)> place;
};

// Why a worker whose program has failed cannot have gone on.
enum class Phase { Starts, Trains, Ended };

// The program of one worker. Its way through the epochs is the production code (comm::MemberEpochs, the
// decisions of tutti/train/change.h); its steps are those of TrainingRun and AllReduce without tensors, with
// the same operations in the same order, to which the comments refer. Runs in the fiber of its process.
class Worker {
 public:
  Worker(Process& process, const Surroundings& around, std::shared_ptr<comm::Rendezvous> board);

  void run();
  Phase phase() const { return phase_; }
  // Returns true if this process has the whole state of the run.
  bool has_state() const { return has_state_ && !half_taken_; }
  const State& state() const { return state_; }
  uint64_t epoch() const { return epochs_.members().epoch; }

 private:
  void connect(const comm::Members& members, comm::EpochBoard& board);
  Parts exchange(const std::string& what, Part part = {});
  void fit(int64_t number);
  void start();
  void begin_together();
  void begin_run();
  bool next();
  void step();
  void share_memory(const comm::Members& members);
  void update(State next);
  void leave_memory();
  void tell_hooks();
  void change(const std::optional<Error>& why);
  void enter_epoch(const std::optional<Error>& why, const std::function<void()>& come_together);
  bool go_on();
  void take_over(int leader, bool is_behind);
  bool change_is_due();
  void place(const char* name) { around_.place(process_, name); }

  Process& process_;
  const Surroundings around_;
  const Program& program_;
  comm::MemberEpochs epochs_;
  int rank_ = 0;
  int world_ = 1;
  int last_rank_ = -1;  // in the epoch before, for a mistake
  int last_world_ = 1;

  SharedMemory* memory_ = nullptr;  // of the epoch; null: each worker makes the whole update
  std::optional<StepCommit> commit_;
  bool has_slots_there_ = false;
  size_t copy_ = 0;  // of the slots

  State state_;
  State at_start_;  // for a mistake
  Phase phase_ = Phase::Starts;
  bool joins_;
  int64_t joined_in_ = -1;  // the fit
  int64_t begun_ = 0;       // the last fit that somebody has begun, as one knows that joins
  bool started_ = false;
  bool has_state_ = false;
  bool half_taken_ = false;
  bool change_wished_ = false;  // in the last step, by anybody
  bool leaves_ = false;         // after the last step
  bool due_ = false;
  Time looked_at_ = -kSecond;
  std::optional<Error> lost_;
};

}  // namespace tutti::simulation

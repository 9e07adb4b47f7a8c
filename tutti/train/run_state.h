#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "tutti/cluster/context.h"

namespace tutti {

// The seconds since 1970.
double unix_now();

// How far a run is, as its chief says it in the run's folder, for tasks that follow the run from outside.
struct RunState {
  // Whether the run goes on.
  enum class Phase {
    Training,
    Complete,     // the fit has ended, and its last checkpoint is on the disk
    Interrupted,  // by a signal: a later run continues
    Stopped,      // by --stop-after: a later run continues, but this job ends
  };

  // All runs that continue from each other's checkpoints have the same id.
  std::string id;
  Phase phase = Phase::Training;
  int64_t fit = 0;       // the index of the call of fit(), from 0; in a Loop 0
  int64_t step = 0;      // steps done, when this was written
  int64_t end_step = 0;  // at which the fit ends; 0: unknown
  int64_t workers = 0;   // that train together; 0: unknown
  // The sequence of the first checkpoint of this run. Earlier ones in the folder belong to a run that was
  // abandoned (--resume never).
  int64_t first_sequence = 0;
  std::string launch;       // launch_of(); "" if the launcher has no name for it
  std::string chief;        // as it names itself in the folder's lock
  std::string web = {};     // HOST:PORT of its page (--web); "": none
  std::string change = {};  // the last one of the workers: "going on at step 5 with 2 workers: ..."
  std::string error = {};   // that has ended the training; "": none
  int64_t failures = 0;     // after each of which the run went back to a checkpoint
  // The Unix time at which the run would have begun if it had not paused between its starts.
  double since = unix_now();

  // The seconds for which the run has been trained until now.
  double trained() const { return std::max(0.0, unix_now() - since); }

  bool operator==(const RunState&) const = default;
};

// The name of the file, which is also reserved.
inline constexpr const char* kRunStateName = "run.json";

// Replaces the file atomically.
void write_run_state(const std::string& folder, const RunState& state);
// Returns nullopt if there is no such file. Throws DataLoss if it was not written by write_run_state().
std::optional<RunState> read_run_state(const std::string& folder);

// Returns a hash of the launcher's name for this launch, so that files do not expose the name; "" if it has
// none.
std::string launch_of(const Context& context);

}  // namespace tutti

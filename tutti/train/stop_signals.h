#pragma once

#include <chrono>
#include <optional>
#include <signal.h>
#include <utility>
#include <vector>

#include "tutti/base/config.h"

namespace tutti {

// The variable in which `tutti run --preempt-signal` passes its number.
inline constexpr const char* kPreemptVariable = "_TUTTI_PREEMPT_SIGNAL";

// While an object exists, SIGTERM, SIGINT and SIGHUP no longer end the process but are recorded, so that the
// current step can be finished and a checkpoint written. A second SIGTERM or SIGINT ends the process as
// usual; a second SIGHUP does not, since both the shell and the kernel send one when a terminal is closed. A
// signal that was not acted on is also seen by the next object. Only one object may exist in a process at a
// time.
//
// If an object ends because of an exception, or while one is handled, the first signal goes on being
// recorded: the process is about to say why it fails, and its launcher, which ends all tasks when one is
// lost, must not silence it.
class StopSignals {
 public:
  // Does nothing, and never receives a signal, unless the configuration asks for it
  // (RunConfig::Training::stop_on_signals).
  explicit StopSignals(const RunConfig& config);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Returns the signal that was received; nullopt if there was none.
  std::optional<int> received() const;
  // Clears the signal, after it was acted on.
  void forget() const;

  // From here on, this signal to the process counts like SIGTERM, but not as a second one: the launcher may
  // have received it as well and send SIGTERM.
  static void also_stop_on(int signal);
  // Returns a signal that arrived while an object existed and was not acted on; nullopt if there is none.
  static std::optional<int> not_acted_on();

  // Returns true if this task, which has been waiting since `waiting_since`, should stop waiting: a signal
  // that was not acted on has been pending for ten seconds of the wait.
  static bool is_overdue(std::chrono::steady_clock::time_point waiting_since);

 private:
  const bool listens_;
  const int exceptions_;                               // in flight, when this object began
  std::vector<std::pair<int, struct sigaction>> old_;  // by signal
};

}  // namespace tutti

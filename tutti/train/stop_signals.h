#pragma once

#include <optional>
#include <signal.h>

namespace tutti {

// While it lives, SIGTERM and SIGINT no longer end the process but are noted here, so that the step under way
// can be finished and a checkpoint written. A second one ends the process as usual. One that nobody has acted
// on is there for the next of these objects, too. One at a time in a process.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The signal that came, if one did.
  std::optional<int> received() const;
  // It was acted on.
  void forget() const;

 private:
  struct sigaction old_term_ {};
  struct sigaction old_int_ {};
};

}  // namespace tutti

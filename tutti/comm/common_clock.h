#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tutti/comm/communicator.h"

namespace tutti::comm {

// How far a rank's clock was from the clock of rank 0 at one moment. All in nanoseconds.
struct ClockReading {
  int64_t at = 0;           // the moment, by the rank's clock
  int64_t ahead = 0;        // how much more rank 0's clock showed
  int64_t uncertainty = 0;  // bound of the error of `ahead`, in either direction
};

// Compares all ranks' clocks with the clock of rank 0. Returns the readings by rank, the same on all ranks.
// The ranks of a host share a clock: only the first rank of each host is asked, several times, and the
// shortest round trip is used. Every rank must call this.
//   D. Mills, "Internet time synchronization: the Network Time Protocol", 1991: half of the shortest round
//   trip bounds the error.
std::vector<ClockReading> compare_clocks(Communicator& comm, const std::vector<std::string>& hosts,
                                         const std::function<int64_t()>& now);

// Converts one rank's clock during a training to the clock of rank 0. Interpolates linearly between two
// readings, so that drift is corrected too.
class CommonClock {
 public:
  explicit CommonClock(const ClockReading& begin, const std::optional<ClockReading>& end = {});

  // Returns the time that rank 0's clock shows when this rank's shows `own`.
  int64_t operator()(int64_t own) const;
  int64_t uncertainty() const;

 private:
  ClockReading begin_;
  ClockReading end_;
};

}  // namespace tutti::comm

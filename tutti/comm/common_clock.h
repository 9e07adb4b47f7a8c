#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tutti/comm/communicator.h"

namespace tutti::comm {

// How a rank's clock stood to that of rank 0 at one moment. All in nanoseconds.
struct ClockReading {
  int64_t at = 0;           // by the rank's clock
  int64_t ahead = 0;        // rank 0's clock showed that much more
  int64_t uncertainty = 0;  // at most so much more or less
};

// Compares the clocks of all ranks with that of rank 0; by rank, the same on all of them. Ranks of one host
// have one clock: only the first of each host is asked, a number of times, and the shortest round trip
// counts. Every rank calls it.
//   D. Mills, "Internet time synchronization: the Network Time Protocol", 1991: half of the round trip that
//   was the shortest bounds the error.
std::vector<ClockReading> compare_clocks(Communicator& comm, const std::vector<std::string>& hosts,
                                         const std::function<int64_t()>& now);

// One rank's clock over a training: two readings, and a straight line between them, so that drift is
// corrected too.
class CommonClock {
 public:
  explicit CommonClock(const ClockReading& begin, const std::optional<ClockReading>& end = {});

  // What rank 0's clock shows when this rank's shows `own`.
  int64_t operator()(int64_t own) const;
  int64_t uncertainty() const;

 private:
  ClockReading begin_;
  ClockReading end_;
};

}  // namespace tutti::comm

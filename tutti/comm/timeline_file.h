#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/base/log.h"
#include "tutti/base/timeline.h"
#include "tutti/base/trace_events.h"
#include "tutti/cluster/context.h"
#include "tutti/comm/common_clock.h"
#include "tutti/comm/communicator.h"

namespace tutti::comm {

struct TimelineFileOptions {
  std::string path;  // rank 0 writes it
  std::string task = "worker";
  std::string host = "";     // for people
  std::string machine = "";  // equal where ranks have one clock
  Log log = Log();
};

// The file of --timeline: what all ranks have noted down, on the clock of rank 0, a process each. It is
// written at the end, when this object goes, and rank by rank in pieces, so that nobody holds more than its
// own.
//
// After an error the ranks cannot talk any more: then each writes what it has to a file of its own, FILE and
// FILE.rank1 and so on, on the same clock. Owned by whoever trains; the communicator and the timeline outlive
// it.
class TimelineFile {
 public:
  // Every rank makes one, or none does. With a path that cannot be written rank 0 throws, and gives up for
  // all. Without a timeline it is nothing.
  TimelineFile(Timeline* timeline, Communicator& comm, TimelineFileOptions options);
  // That of --timeline.
  TimelineFile(const Context& context, Communicator& comm);
  // Writes, once more where that was done before. While an exception passes by, which the other ranks may
  // know nothing of, each rank writes its own.
  ~TimelineFile();
  TimelineFile(const TimelineFile&) = delete;
  TimelineFile& operator=(const TimelineFile&) = delete;

  // Every rank calls it. What goes wrong is a warning in the log: training is not to fail from it.
  void write() noexcept;

 private:
  void gather_and_write();
  void write_all(TraceEvents& events, const Json& about);
  std::vector<std::string> gather_pieces(const std::string& mine, bool stopped);
  void write_own(const std::string& why) noexcept;
  TraceProcess process(const CommonClock& clock, int64_t begin) const;
  Json about_this(const CommonClock& clock) const;

  Timeline* const timeline_;
  Communicator& comm_;
  const TimelineFileOptions options_;
  const int exceptions_;
  std::vector<std::string> machines_;  // by rank
  std::vector<ClockReading> clocks_;   // by rank, at the beginning
  bool written_ = false;
};

}  // namespace tutti::comm

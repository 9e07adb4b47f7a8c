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
  std::string host = "";     // the host's name, for display
  std::string machine = "";  // equal for ranks that share a clock
  Log log = Log();
};

// The file of --timeline: the spans of all ranks, on the clock of rank 0, with one process per rank. It is
// written at the end, when this object is destroyed. Ranks send their spans in pieces, so that no rank holds
// more than its own spans.
//
// After an error the ranks can no longer communicate. Then each writes its spans to a file of its own, FILE,
// FILE.rank1 and so on, on the same clock. Owned by the code that trains; the communicator and the timeline
// must outlive it.
class TimelineFile {
 public:
  // Either every rank makes one, or none does. If the path cannot be written, rank 0 throws and abandons the
  // communicator for all. Does nothing if the timeline is nullptr.
  TimelineFile(Timeline* timeline, Communicator& comm, TimelineFileOptions options);
  // Uses the timeline and the options of the context (--timeline).
  TimelineFile(const Context& context, Communicator& comm);
  // Writes the file, again if write() was called before. If an exception is in flight, of which the other
  // ranks may not know, each rank writes its own file.
  ~TimelineFile();
  TimelineFile(const TimelineFile&) = delete;
  TimelineFile& operator=(const TimelineFile&) = delete;

  // Every rank must call this. Errors are logged as warnings, since training should not fail because of them.
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

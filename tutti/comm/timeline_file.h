#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/log.h"
#include "tutti/base/timeline.h"
#include "tutti/cluster/context.h"
#include "tutti/comm/common_clock.h"
#include "tutti/comm/communicator.h"

namespace tutti::comm {

// Options of a TimelineFile that is made without a context.
struct TimelineFileOptions {
  std::string path;             // of rank 0's file
  int rank = 0;                 // in the job
  int world = 1;                // the number of ranks of the job
  std::string task = "worker";  // the name of the task, for display
  std::string host = "";        // the host's name, for display
  std::string machine = "";     // equal for ranks that share a clock
  Log log = Log();
};

// This rank's file of --timeline: FILE.json of rank 0, FILE.rank1.json and so on. It is written at the end,
// when this object is destroyed, after errors too. The ranks of a communicator write times of one clock, that
// of its rank 0. `tutti timeline` joins the files (tools/trace_join.h). Owned by the code that trains;
// the communicator and the timeline must outlive it.
class TimelineFile {
 public:
  // Either every rank makes one, or none does. Removes the file of an earlier run. A rank that cannot write
  // its file throws, and abandons the communicator for all. Does nothing if the timeline is nullptr.
  // A rank that is not connected to the others has no communicator, and uses its own clock.
  TimelineFile(Timeline* timeline, Communicator* comm, TimelineFileOptions options);
  // Uses the timeline and the options of the context (--timeline). An evaluator writes no file.
  explicit TimelineFile(const Context& context, Communicator* comm = nullptr);
  // Writes the file, again if write() was called before, unless an exception is in flight now.
  ~TimelineFile();
  TimelineFile(const TimelineFile&) = delete;
  TimelineFile& operator=(const TimelineFile&) = delete;

  // Every rank must call this. Errors are logged as warnings, since training should not fail because of them.
  void write() noexcept;

 private:
  ClockReading read_clock() const;
  void write_file(const std::optional<ClockReading>& end, const std::string& error) noexcept;
  void say_where() const;

  Timeline* const timeline_;
  Communicator* const comm_;  // null: not connected
  const TimelineFileOptions options_;
  const int exceptions_;
  std::vector<std::string> machines_;  // by rank
  ClockReading begin_;                 // of this rank's clock
  const int64_t wall_begin_;
  bool written_ = false;
};

}  // namespace tutti::comm

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/base/timeline.h"

namespace tutti {

// Returns the beginning of the first span, by the timeline's clock, or nullopt. Reads all spans.
std::optional<int64_t> first_begin(const Timeline& timeline);

struct TraceProcess {
  int number = 0;
  std::string name = "";   // "worker/2 on host"
  std::string label = "";  // shown next to the name
  // Converts a time of the timeline to a time of the file; both are in nanoseconds.
  std::function<int64_t(int64_t)> time = [](int64_t own) { return own; };
};

// Converts a timeline to Chrome's trace events (chrome://tracing, ui.perfetto.dev), piece by piece. Includes
// everything recorded before the construction. The timeline must outlive it.
//   "Trace Event Format", Google, 2016: complete events ("X") and metadata ("M"), times in microseconds.
class TraceEvents {
 public:
  TraceEvents(const Timeline& timeline, TraceProcess process);

  // Returns about `bytes` bytes of the next events, one per line, separated by commas; "" at the end.
  std::string next(size_t bytes);

  uint64_t spans() const;
  // The number of spans that the timeline had dropped.
  uint64_t dropped() const;

 private:
  void begin_line();
  void add_metadata(std::string_view kind, size_t track, const std::string& key, const Json& value);
  void add(const Timeline::Span& span);
  const std::string& quoted_name(const Timeline::Span& span);

  const Timeline& timeline_;
  const TraceProcess process_;
  const std::vector<Timeline::Track> tracks_;
  std::string text_;  // the result of next() so far
  bool named_ = false;
  size_t track_ = 0;
  uint64_t number_ = 0;  // of the next span in that track
  std::vector<Timeline::Span> spans_;
  std::unordered_map<std::string, std::string> quoted_;  // keyed by the name without quotes
};

// Writes a file of trace events. The file has a temporary name until finish() renames it. If it is not
// finished, nothing is left behind.
class TraceFile {
 public:
  // Throws if the path cannot be written.
  TraceFile(std::string path, const Json& about);
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // Requires a text that TraceEvents::next() returned.
  void write(std::string_view events);
  void finish();

 private:
  const std::string path_;
  const std::string temporary_;
  FileWriter writer_;
  std::string before_;  // what comes before the next events: at first, the beginning of the file
  bool finished_ = false;
};

// Returns the name of a rank's trace: "run.json" of rank 0, "run.rank2.json" of rank 2.
std::string trace_path(const std::string& path, int rank);

// Throws if creating a TraceFile at this path would throw. Removes the file if there is one.
void clear_for_trace(const std::string& path);

// Writes the trace of a single process. The file contains `about` next to the events, and the numbers of
// spans that it has and that were dropped.
void write_trace(const std::string& path, const Timeline& timeline, const TraceProcess& process, Json about);

}  // namespace tutti

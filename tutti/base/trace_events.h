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

// When the first span began, by the timeline's clock; nothing where there are none. Looks at all of them.
std::optional<int64_t> first_begin(const Timeline& timeline);

struct TraceProcess {
  int number = 0;
  std::string name = "";   // "worker/2 on host"
  std::string label = "";  // beside it
  // From the timeline's nanoseconds to those of the file.
  std::function<int64_t(int64_t)> time = [](int64_t own) { return own; };
};

// A timeline as Chrome's trace events (chrome://tracing, ui.perfetto.dev), piece by piece: what was recorded
// until this was made. The timeline outlives it.
//   "Trace Event Format", Google, 2016: complete events ("X") and metadata ("M"), times in microseconds.
class TraceEvents {
 public:
  TraceEvents(const Timeline& timeline, TraceProcess process);

  // The next events, a line each, with commas between them: about so many bytes, nothing when all are out.
  std::string next(size_t bytes);

  uint64_t spans() const;
  // That were forgotten.
  uint64_t dropped() const;

 private:
  void begin_line();
  void add_metadata(std::string_view kind, size_t track, const std::string& key, const Json& value);
  void add(const Timeline::Span& span);
  const std::string& quoted_name(const Timeline::Span& span);

  const Timeline& timeline_;
  const TraceProcess process_;
  const std::vector<Timeline::Track> tracks_;
  std::string text_;  // that next() returns
  bool named_ = false;
  size_t track_ = 0;
  uint64_t number_ = 0;  // of the next span in it
  std::vector<Timeline::Span> spans_;
  std::unordered_map<std::string, std::string> quoted_;  // by the name without quotes
};

// A file of trace events on its way: under another name, until finish() gives it its own. Unfinished it
// leaves nothing.
class TraceFile {
 public:
  // Throws where the path cannot be written.
  TraceFile(std::string path, const Json& about);
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // As from TraceEvents.
  void write(std::string_view events);
  void finish();

 private:
  const std::string path_;
  const std::string temporary_;
  FileWriter writer_;
  bool empty_ = true;
  bool finished_ = false;
};

// Throws where a TraceFile at this path would; leaves nothing there.
void require_writable_trace(const std::string& path);

// One process by itself; `about` lands beside the events.
void write_trace(const std::string& path, const Timeline& timeline, const TraceProcess& process,
                 const Json& about);

}  // namespace tutti

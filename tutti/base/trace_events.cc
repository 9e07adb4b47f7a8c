#include "tutti/base/trace_events.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <optional>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tutti/base/error.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

constexpr size_t kSpansAtOnce = 1024;
constexpr int64_t kNanoseconds = 1000;  // in a microsecond

// Replaces invalid UTF-8, which would otherwise make the whole file fail.
std::string to_text(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// Viewers treat process 0 and thread 0 as the idle ones of the system.
int process_id(int number) { return number + 1; }
size_t thread_id(size_t track) { return track + 1; }

// The file is replaced by renaming, so an existing path must be a file. A symbolic link is kept.
std::string target_of(const std::string& path) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (fs::exists(status) && !fs::is_regular_file(status))
    fail(ErrorKind::InvalidArgument, "{} is not a regular file: choose another name for the timeline", path);
  return link_target_of(path);
}

std::string temporary_for(const std::string& target) { return fmt::format("{}.tmp.{}", target, ::getpid()); }

}  // namespace

std::optional<int64_t> first_begin(const Timeline& timeline) {
  std::optional<int64_t> first;
  std::vector<Timeline::Span> spans;
  const std::vector<Timeline::Track> tracks = timeline.tracks();
  for (size_t t = 0; t < tracks.size(); ++t) {
    for (uint64_t number = tracks[t].first; number < tracks[t].end;) {
      number = timeline.read(t, number, kSpansAtOnce, spans);
      for (const Timeline::Span& span : spans) first = std::min(first.value_or(span.begin), span.begin);
    }
  }
  return first;
}

TraceEvents::TraceEvents(const Timeline& timeline, TraceProcess process)
    : timeline_(timeline), process_(std::move(process)), tracks_(timeline.tracks()) {}

uint64_t TraceEvents::spans() const {
  uint64_t spans = 0;
  for (const Timeline::Track& track : tracks_) spans += track.end - track.first;
  return spans;
}

uint64_t TraceEvents::dropped() const {
  uint64_t dropped = 0;
  for (const Timeline::Track& track : tracks_) dropped += track.first;
  return dropped;
}

std::string TraceEvents::next(size_t bytes) {
  text_.clear();
  if (!std::exchange(named_, true)) {
    add_metadata("process_name", 0, "name", process_.name);
    add_metadata("process_sort_index", 0, "sort_index", process_.number);
    if (!process_.label.empty()) add_metadata("process_labels", 0, "labels", process_.label);
    for (size_t t = 0; t < tracks_.size(); ++t) {
      add_metadata("thread_name", t, "name", tracks_[t].name);
      add_metadata("thread_sort_index", t, "sort_index", t);
    }
  }
  while (track_ < tracks_.size() && text_.size() < bytes) {
    const Timeline::Track& track = tracks_[track_];
    const uint64_t most = std::min<uint64_t>(kSpansAtOnce, track.end - std::min(track.end, number_));
    number_ = timeline_.read(track_, number_, most, spans_);
    for (const Timeline::Span& span : spans_) add(span);
    if (number_ < track.end) continue;
    ++track_;
    number_ = 0;
  }
  return std::move(text_);
}

void TraceEvents::begin_line() {
  if (!text_.empty()) text_ += ",\n";
}

void TraceEvents::add_metadata(std::string_view kind, size_t track, const std::string& key,
                               const Json& value) {
  begin_line();
  text_ += to_text({{"ph", "M"},
                    {"pid", process_id(process_.number)},
                    {"tid", thread_id(track)},
                    {"name", kind},
                    {"args", {{key, value}}}});
}

const std::string& TraceEvents::quoted_name(const Timeline::Span& span) {
  const std::string name = span.name.empty()   ? std::string(span.what)
                           : span.what.empty() ? std::string(span.name)
                                               : fmt::format("{} of {}", span.name, span.what);
  std::string& quoted = quoted_[name];
  if (quoted.empty()) quoted = to_text(name);
  return quoted;
}

void TraceEvents::add(const Timeline::Span& span) {
  begin_line();
  const int64_t begin = process_.time(span.begin);
  const int64_t length = std::max<int64_t>(0, process_.time(span.end) - begin);
  const auto out = std::back_inserter(text_);
  fmt::format_to(out, R"({{"ph":"X","pid":{},"tid":{},"ts":{}.{:03},"dur":{}.{:03},"cat":"{}","name":{})",
                 process_id(process_.number), thread_id(track_), begin / kNanoseconds, begin % kNanoseconds,
                 length / kNanoseconds, length % kNanoseconds, to_string(span.activity), quoted_name(span));
  if (span.step >= 0) fmt::format_to(out, R"(,"args":{{"step":{}}})", span.step);
  text_ += '}';
}

TraceFile::TraceFile(std::string path, const Json& about)
    : path_(target_of(path)),
      temporary_(temporary_for(path_)),
      writer_(temporary_),
      before_(fmt::format("{{\"displayTimeUnit\":\"ms\",\n\"otherData\":{},\n\"traceEvents\":[\n",
                          to_text(about))) {}

TraceFile::~TraceFile() {
  if (!finished_) ::unlink(temporary_.c_str());
}

void TraceFile::write(std::string_view events) {
  if (events.empty()) return;
  writer_.write(std::exchange(before_, ",\n"));
  writer_.write(events);
}

void TraceFile::finish() {
  if (before_ != ",\n") writer_.write(before_);
  writer_.write("\n]}\n");
  writer_.finish();
  rename_path(temporary_, path_);
  finished_ = true;
}

std::string trace_path(const std::string& path, int rank) {
  if (rank == 0) return path;
  const fs::path whole(path);
  return (whole.parent_path() /
          fmt::format("{}.rank{}{}", whole.stem().string(), rank, whole.extension().string()))
      .string();
}

void clear_for_trace(const std::string& path) {
  const std::string target = target_of(path);  // fails if the path exists and is not a file
  require_replaceable(target);
  if (::unlink(target.c_str()) != 0 && errno != ENOENT) fail_errno(errno, "removing " + target);
}

void write_trace(const std::string& path, const Timeline& timeline, const TraceProcess& process, Json about) {
  constexpr size_t kPiece = size_t{1} << 20;
  TraceEvents events(timeline, process);
  about["spans"] = events.spans();
  about["dropped_spans"] = events.dropped();
  TraceFile file(path, about);
  for (std::string piece = events.next(kPiece); !piece.empty(); piece = events.next(kPiece))
    file.write(piece);
  file.finish();
}

}  // namespace tutti

#include "tools/trace_join.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/base/trace_events.h"
#include "tutti/base/version.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostTasks = 1 << 16;
constexpr size_t kLongestLine = size_t{1} << 20;

// One of the files. TraceFile writes three lines, then an event per line, and then a last line.
class Trace {
 public:
  explicit Trace(std::string path) : path_(std::move(path)) {
    const FileReader readable(path_);  // throws if it is not a regular file: a pipe could block for ever
    std::ifstream lines(path_);
    constexpr std::string_view kBegin = "\"otherData\":";
    const std::string about = head(lines)[1];
    if (about.starts_with(kBegin) && about.ends_with(','))
      about_ = parse_json(std::string_view(about).substr(kBegin.size(), about.size() - kBegin.size() - 1),
                          path_, ErrorKind::DataLoss);
    if (!about_.contains("rank"))
      fail(ErrorKind::InvalidArgument, "{} is not a file of --timeline of one task", path_);
    rank_ = value_in<int64_t>(about_, "rank", path_);
    world_ = value_in<int64_t>(about_, "world", path_);
    wall_ahead_ = value_in<double>(about_, "wall_ahead_us", path_);
    clock_ = value_in<std::string>(about_, "clock", path_);
    task_ = value_in<std::string>(about_, "task", path_);
    complete_ = value_in<bool>(about_, "complete", path_);
    wall_begin_ = value_in<double>(about_, "wall_begin_us", path_);
    wall_end_ = value_in<double>(about_, "wall_end_us", path_);
    if (world_ > kMostTasks || rank_ < 0 || rank_ >= world_)
      fail(ErrorKind::DataLoss, "{} is damaged: rank {} of {}", path_, rank_, world_);
  }

  const std::string& path() const { return path_; }
  const Json& about() const { return about_; }
  int rank() const { return static_cast<int>(rank_); }
  int world() const { return static_cast<int>(world_); }
  bool complete() const { return complete_; }
  const std::string& task() const { return task_; }

  // Returns the number of microseconds to add to the times of this file to convert them to the other file's
  // clock.
  double behind(const Trace& other) const {
    return clock_ == other.clock_ ? 0 : wall_ahead_ - other.wall_ahead_;
  }

  // Returns true if both were recorded at the same time, as files of one run are.
  bool overlaps(const Trace& other) const {
    return wall_begin_ <= other.wall_end_ && other.wall_begin_ <= wall_end_;
  }

  // Passes on every event.
  void read(const std::function<void(const std::string& event)>& on_event) const {
    std::ifstream lines(path_);
    int64_t number = static_cast<int64_t>(head(lines).size());
    std::string line;
    while (next_line(lines, line)) {
      ++number;
      if (line == "]}" && lines.peek() == EOF) return;
      if (line.ends_with(',')) line.pop_back();
      if (line.empty() && lines.peek() == ']') continue;
      if (!line.starts_with("{\"ph\":\"") || !Json::accept(line))
        fail(ErrorKind::DataLoss, "{} is damaged in line {}", path_, number);
      on_event(line);
    }
    fail(ErrorKind::DataLoss, "{} is damaged after line {}", path_, number);
  }

 private:
  // Returns the lines before the events.
  static std::array<std::string, 3> head(std::istream& from) {
    std::array<std::string, 3> lines;
    for (std::string& line : lines) next_line(from, line);
    return lines;
  }

  // Returns false at the end, and for a line that is longer than TraceFile writes.
  static bool next_line(std::istream& from, std::string& line) {
    line.resize(kLongestLine);
    from.getline(line.data(), static_cast<std::streamsize>(line.size()));
    const bool good = !from.fail();
    const auto taken = static_cast<size_t>(from.gcount());
    line.resize(!good ? 0 : from.eof() ? taken : taken - 1);
    return good;
  }

  std::string path_;
  Json about_;
  int64_t rank_ = 0;
  int64_t world_ = 0;
  double wall_ahead_ = 0;
  std::string clock_;
  std::string task_;
  bool complete_ = false;
  double wall_begin_ = 0;
  double wall_end_ = 0;
};

// Adds to the time at which an event begins.
void move(std::string& event, double microseconds) {
  constexpr std::string_view kTime = "\"ts\":";
  const size_t at = event.find(kTime);
  if (at == std::string::npos) return;  // it names a task or a thread
  const char* const begin = event.data() + at + kTime.size();
  double time = 0;
  const auto [end, error] = std::from_chars(begin, event.data() + event.size(), time);
  if (error == std::errc())
    event.replace(at + kTime.size(), static_cast<size_t>(end - begin),
                  fmt::format("{:.3f}", time + microseconds));
}

// Returns the files of the other ranks beside the file of rank 0. Leaves out files of an earlier run with
// more ranks.
std::vector<std::string> others_of(const Trace& first) {
  std::vector<std::string> others;
  for (int rank = 1; rank < first.world(); ++rank) {
    if (std::string path = trace_path(first.path(), rank); path_exists(path))
      others.push_back(std::move(path));
  }
  return others;
}

void require_one_run(const std::vector<Trace>& traces) {
  for (size_t i = 1; i < traces.size(); ++i) {
    const Trace& one = traces[i - 1];
    const Trace& other = traces[i];
    if (one.world() != other.world())
      fail(ErrorKind::InvalidArgument, "{} is of a run of {} workers, but {} of one of {}", one.path(),
           one.world(), other.path(), other.world());
    if (one.rank() == other.rank())
      fail(ErrorKind::InvalidArgument, "{} and {} are both of rank {}", one.path(), other.path(), one.rank());
  }
}

// Returns the numbers of the ranks that have no file.
std::vector<int> missing_ranks(const std::vector<Trace>& traces) {
  std::set<int> there;
  for (const Trace& trace : traces) there.insert(trace.rank());
  std::vector<int> missing;
  for (int rank = 0; rank < traces.front().world(); ++rank) {
    if (!there.contains(rank)) missing.push_back(rank);
  }
  return missing;
}

}  // namespace

JoinedTraces join_traces(const std::vector<std::string>& paths, const std::string& out) {
  std::vector<Trace> traces;
  for (const std::string& path : paths) traces.emplace_back(path);
  if (traces.size() == 1) {
    for (const std::string& path : others_of(traces.front())) traces.emplace_back(path);
  }
  std::sort(traces.begin(), traces.end(), [](const Trace& a, const Trace& b) { return a.rank() < b.rank(); });
  require_one_run(traces);
  JoinedTraces joined{
      .files = static_cast<int>(traces.size()), .world = traces.front().world(), .warnings = {}};
  const std::vector<int> missing = missing_ranks(traces);
  if (!missing.empty()) {
    constexpr size_t kNamed = 8;
    const std::span named(missing.data(), std::min(missing.size(), kNamed));
    joined.warnings.push_back(fmt::format(
        "there is no file of the ranks {}{}: a worker that was killed leaves none, and one on another "
        "machine may have written its file there",
        fmt::join(named, ", "), named.size() < missing.size() ? ", ..." : ""));
  }
  Json about = {{"tutti_version", version()},
                {"world", joined.world},
                {"complete",
                 missing.empty() && std::all_of(traces.begin(), traces.end(), std::mem_fn(&Trace::complete))},
                {"ranks", Json::array()}};
  for (const Trace& trace : traces) {
    std::error_code ignored;
    if (fs::equivalent(trace.path(), out, ignored))
      fail(ErrorKind::InvalidArgument, "{} is one of the files to join: give --out another name", out);
    const double behind = trace.behind(traces.front());
    if (behind != 0)
      joined.warnings.push_back(fmt::format(
          "the clock of {} was not compared with that of {}, only the wall clocks of their machines",
          trace.task(), traces.front().task()));
    if (!trace.overlaps(traces.front()))
      joined.warnings.push_back(
          fmt::format("{} and {} were not recorded at the same time: are they of one run?",
                      traces.front().path(), trace.path()));
    about["ranks"].push_back(trace.about());
    about["ranks"].back()["moved_us"] = behind;
  }
  TraceFile file(out, about);
  for (const Trace& trace : traces) {
    const double behind = trace.behind(traces.front());
    trace.read([&](std::string event) {
      if (behind != 0) move(event, behind);
      file.write(event);
    });
  }
  file.finish();
  return joined;
}

}  // namespace tutti

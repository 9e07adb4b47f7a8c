#include "tools/plot/plotted_run.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <set>

#include <nlohmann/json.hpp>

#include "tutti/base/crc32c.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/base/text.h"

namespace tutti::plot {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEventFiles = "events.out.tfevents.";
constexpr const char* kReportFile = "report.json";

// Field numbers of TensorBoard's messages, of those that are read.
constexpr uint64_t kEventStep = 2;
constexpr uint64_t kEventSummary = 5;
constexpr uint64_t kEventSession = 7;
constexpr uint64_t kSessionStatus = 1;
constexpr uint64_t kSummaryValue = 1;
constexpr uint64_t kValueTag = 1;
constexpr uint64_t kValueNumber = 2;
constexpr uint64_t kSessionStarts = 1;

template <class Number>
Number number_at(std::string_view bytes, size_t at = 0) {
  Number number{};
  std::memcpy(&number, bytes.data() + at, sizeof(number));
  return number;
}

// One field of a protobuf message.
struct Field {
  uint64_t number = 0;
  uint64_t value = 0;           // of an integer
  std::string_view bytes = {};  // of any other field
};

// Takes a varint, or so many bytes, from the front; nullopt if there are not enough.
std::optional<uint64_t> take_varint(std::string_view& rest) {
  constexpr size_t kLongest = 10;
  uint64_t value = 0;
  for (size_t i = 0; i < std::min(rest.size(), kLongest); ++i) {
    const auto byte = static_cast<unsigned char>(rest[i]);
    value |= static_cast<uint64_t>(byte & 0x7FU) << (7 * i);
    if (byte < 0x80U) {
      rest.remove_prefix(i + 1);
      return value;
    }
  }
  return std::nullopt;
}

std::optional<std::string_view> take_bytes(std::string_view& rest, uint64_t count) {
  if (count > rest.size()) return std::nullopt;
  const std::string_view bytes = rest.substr(0, count);
  rest.remove_prefix(count);
  return bytes;
}

std::optional<Field> take_field(std::string_view& rest) {
  constexpr uint64_t kVarint = 0;
  constexpr uint64_t kEightBytes = 1;
  constexpr uint64_t kWithLength = 2;
  constexpr uint64_t kFourBytes = 5;
  const auto key = take_varint(rest);
  if (!key) return std::nullopt;
  const uint64_t type = *key & 7U;
  std::optional<uint64_t> length;
  if (type == kEightBytes) length = 8;
  if (type == kFourBytes) length = 4;
  if (type == kVarint || type == kWithLength) {
    const auto value = take_varint(rest);
    if (!value) return std::nullopt;
    if (type == kVarint) return Field{*key >> 3U, *value, {}};
    length = value;
  }
  if (!length) return std::nullopt;
  const auto bytes = take_bytes(rest, *length);
  return bytes ? std::optional(Field{*key >> 3U, 0, *bytes}) : std::nullopt;
}

std::vector<Field> fields_of(std::string_view message, const std::string& what) {
  std::vector<Field> fields;
  while (!message.empty()) {
    const auto field = take_field(message);
    if (!field) fail(ErrorKind::DataLoss, "{} has an event that cannot be decoded", what);
    fields.push_back(*field);
  }
  return fields;
}

void add_value(std::string_view value, int64_t step, const std::string& what, PlottedRun& run) {
  std::string_view tag;
  std::optional<float> number;
  for (const Field& field : fields_of(value, what)) {
    if (field.number == kValueTag) tag = field.bytes;
    if (field.number == kValueNumber && field.bytes.size() == sizeof(float))
      number = number_at<float>(field.bytes);
  }
  if (number) run.scalars[std::string(tag)].push_back({static_cast<double>(step), *number});
}

// Forgets the values from this step on: a run was resumed before it.
void forget_from(int64_t step, PlottedRun& run) {
  for (auto& [tag, points] : run.scalars)
    std::erase_if(points, [&](const Point& point) { return point.x >= static_cast<double>(step); });
}

void add_event(std::string_view event, const std::string& what, PlottedRun& run) {
  const std::vector<Field> fields = fields_of(event, what);
  int64_t step = 0;
  for (const Field& field : fields) {
    if (field.number == kEventStep) step = static_cast<int64_t>(field.value);
  }
  for (const Field& field : fields) {
    const bool is_summary = field.number == kEventSummary;
    if (!is_summary && field.number != kEventSession) continue;
    for (const Field& inner : fields_of(field.bytes, what)) {
      if (is_summary && inner.number == kSummaryValue) add_value(inner.bytes, step, what, run);
      if (!is_summary && inner.number == kSessionStatus && inner.value == kSessionStarts)
        forget_from(step, run);
    }
  }
}

uint32_t masked(std::string_view data) {
  constexpr uint32_t kMask = 0xa282ead8;
  return std::rotr(crc32c(as_bytes(data)), 15) + kMask;
}

// Brings the points of each tag into the order of the steps. Of several for one step, the last one counts.
void sort_points(PlottedRun& run) {
  for (auto& [tag, points] : run.scalars) {
    std::reverse(points.begin(), points.end());
    std::stable_sort(points.begin(), points.end(), [](const Point& a, const Point& b) { return a.x < b.x; });
    const auto end =
        std::unique(points.begin(), points.end(), [](const Point& a, const Point& b) { return a.x == b.x; });
    points.erase(end, points.end());
  }
  std::erase_if(run.scalars, [](const auto& item) { return item.second.empty(); });
}

double number_or_nan(const Json& json) {
  return json.is_number() ? json.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

// If the run has event files, these have the scalars.
void add_report(const std::string& path, bool has_events, PlottedRun& run) {
  const Json report = parse_json(read_file(path), path, ErrorKind::InvalidArgument);
  if (!report.is_object() || !report.contains("steps") || !report.contains("weights_sha256"))
    fail(ErrorKind::InvalidArgument, "{} is not a report that a run has written (--report)", path);
  const auto object = [&](const char* key) {
    Json value = report.value(key, Json::object());
    if (!value.is_object()) fail(ErrorKind::DataLoss, "{} has '{}' that is not an object", path, key);
    return value;
  };
  const Json updates = object("staleness");
  for (const auto& item : updates.items())
    run.staleness[parse_int(item.key()).value_or(0)] += value_in<int64_t>(updates, item.key(), path);
  if (has_events) return;
  const double step = number_or_nan(report.at("steps"));
  const auto add = [&](const std::string& tag, const Json& value) {
    if (!value.is_null()) run.scalars[tag] = {{step, number_or_nan(value)}};
  };
  add("loss", report.value("loss", Json()));
  add("examples_per_second", report.value("examples_per_second", Json()));
  const Json metrics = object("metrics");
  for (const auto& [name, value] : metrics.items()) add("test_" + name, value);
}

}  // namespace

void add_events(std::string_view bytes, const std::string& what, PlottedRun& run) {
  constexpr size_t kHead = sizeof(uint64_t) + sizeof(uint32_t);
  while (bytes.size() >= kHead) {
    const auto length = number_at<uint64_t>(bytes);
    if (number_at<uint32_t>(bytes, sizeof(uint64_t)) != masked(bytes.substr(0, sizeof(uint64_t))))
      fail(ErrorKind::DataLoss, "{} is damaged, or is not an event file", what);
    bytes.remove_prefix(kHead);
    if (bytes.size() < sizeof(uint32_t) || length > bytes.size() - sizeof(uint32_t)) return;
    const std::string_view event = bytes.substr(0, length);
    if (number_at<uint32_t>(bytes, length) != masked(event))
      fail(ErrorKind::DataLoss, "{} is damaged: an event has another checksum", what);
    add_event(event, what, run);
    bytes.remove_prefix(length + sizeof(uint32_t));
  }
}

PlottedRun read_run(const std::string& path) {
  fs::path named(path);
  if (!named.has_filename()) named = named.parent_path();  // run/
  PlottedRun run{.name = named.filename().string()};
  if (!path_exists(path)) fail(ErrorKind::InvalidArgument, "{} does not exist", path);
  if (!fs::is_directory(path)) {
    add_report(path, false, run);
    return run;
  }
  std::set<std::string> files;  // in the order in which they were written
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    if (entry.path().filename().string().starts_with(kEventFiles)) files.insert(entry.path().string());
  }
  const std::string report = path + "/" + kReportFile;
  if (files.empty() && !path_exists(report))
    fail(ErrorKind::InvalidArgument,
         "{} has no event files and no {}: give a log directory (--logdir), or the file of a --report", path,
         kReportFile);
  for (const std::string& file : files) add_events(read_file(file), file, run);
  sort_points(run);
  if (path_exists(report)) add_report(report, !run.scalars.empty(), run);
  return run;
}

}  // namespace tutti::plot

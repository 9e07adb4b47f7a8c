#include "tools/plot/plotted_run.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <set>

#include <nlohmann/json.hpp>

#include "tools/plot/events.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/base/text.h"

namespace tutti::plot {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEventFiles = "events.out.tfevents.";
constexpr const char* kReportFile = "report.json";
constexpr const char* kSweepFile = "sweep.json";

// Brings the values of each tag into the order of the steps. Of several for one step, the last one counts.
template <class Value, class Step>
void sort_by_step(std::map<std::string, std::vector<Value>>& values, Step Value::*step) {
  for (auto& [tag, list] : values) {
    std::reverse(list.begin(), list.end());
    std::stable_sort(list.begin(), list.end(),
                     [&](const Value& a, const Value& b) { return a.*step < b.*step; });
    const auto end = std::unique(list.begin(), list.end(),
                                 [&](const Value& a, const Value& b) { return a.*step == b.*step; });
    list.erase(end, list.end());
  }
  std::erase_if(values, [](const auto& item) { return item.second.empty(); });
}

double number_or_nan(const Json& json) {
  return json.is_number() ? json.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

// Adds a value of a report, unless it or its step is unknown.
void add_point(const std::string& tag, const Json& step, const Json& value, PlottedRun& run) {
  if (!value.is_null() && step.is_number())
    run.scalars[tag].push_back({number_or_nan(step), number_or_nan(value)});
}

// Adds the losses and metrics of a report, with the tags that they would have in an event file. A metric of a
// validation is called validation_NAME in the report, and NAME in its history. A metric of trainer.evaluate()
// is called NAME in the report.
void add_numbers(const Json& report, const Json& metrics, PlottedRun& run) {
  const std::string validation = "validation_";
  const Json step = report.at("steps");
  const Json history = report.value("history", Json::array());
  std::set<std::string> during;  // the tags of evaluations during the training
  for (const Json& row : history) {
    if (!row.is_object()) continue;
    add_point("loss", row.value("step", Json()), row.value("loss", Json()), run);
    const Json values = row.value("validation", Json::object());
    if (!values.is_object()) continue;
    for (const auto& [name, value] : values.items()) {
      const std::string tag = metrics.contains(validation + name) ? validation + name : name;
      during.insert(tag);
      add_point(tag, row.value("step", Json()), value, run);
    }
  }
  if (!run.scalars.contains("loss")) add_point("loss", step, report.value("loss", Json()), run);
  add_point("examples_per_second", step, report.value("examples_per_second", Json()), run);
  for (const auto& [name, value] : metrics.items()) {
    const bool is_tag = name.starts_with(validation) || during.contains(name);
    add_point(is_tag ? name : "test_" + name, step, value, run);
  }
}

// If the run has event files, the scalars are read from them.
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
  if (!has_events) add_numbers(report, object("metrics"), run);
}

}  // namespace

PlottedRun read_run(const std::string& path) {
  fs::path named(path);
  if (!named.has_filename()) named = named.parent_path();  // run/
  PlottedRun run{.name = named.filename().string()};
  if (!path_exists(path)) fail(ErrorKind::InvalidArgument, "{} does not exist", path);
  if (!fs::is_directory(path)) {
    add_report(path, false, run);
    sort_by_step(run.scalars, &chart::Point::x);
    return run;
  }
  std::set<std::string> files;  // in the order in which they were written
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    if (entry.path().filename().string().starts_with(kEventFiles)) files.insert(entry.path().string());
  }
  const std::string report = path + "/" + kReportFile;
  if (files.empty() && path_exists(path + "/" + kSweepFile))
    fail(ErrorKind::InvalidArgument, "{0} is the folder of a sweep; name its runs: {1}/run-*, or one of them",
         path, (named.parent_path() / named.filename()).string());
  if (files.empty() && !path_exists(report))
    fail(ErrorKind::InvalidArgument,
         "{} has no event files and no {}: give a log directory (--logdir), or the file of a --report", path,
         kReportFile);
  for (const std::string& file : files) add_events(read_file(file), file, run);
  if (path_exists(report)) add_report(report, !run.scalars.empty(), run);
  sort_by_step(run.scalars, &chart::Point::x);
  sort_by_step(run.counts, &CountsAtStep::step);
  return run;
}

}  // namespace tutti::plot

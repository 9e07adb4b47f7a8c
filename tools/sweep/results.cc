#include "tools/sweep/results.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "tutti/base/file.h"

namespace tutti {
namespace {

Json json_of(const Stop& stop) {
  Json values = Json::object();
  for (const auto& [name, value] : stop.values) values[name] = value ? Json(*value) : Json(nullptr);
  return {{"stop_after", stop.stop_after},
          {"steps", stop.steps},
          {"complete", stop.complete},
          {"values", values},
          {"weights_sha256", stop.weights_sha256}};
}

std::optional<double> number_of(const Json& json) {
  return json.is_number() ? std::optional(json.get<double>()) : std::nullopt;
}

Stop stop_from(const Json& json, const std::string& path) {
  Stop stop;
  stop.stop_after = value_in<int64_t>(json, "stop_after", path);
  stop.steps = value_in<int64_t>(json, "steps", path);
  stop.complete = value_in<bool>(json, "complete", path);
  stop.weights_sha256 = value_in<std::string>(json, "weights_sha256", path);
  for (const auto& [name, value] : json.at("values").items()) stop.values[name] = number_of(value);
  return stop;
}

constexpr const char* kRunning = "running";
constexpr const char* kInterrupted = "interrupted";

std::string state_of(const SweepRun& run) {
  if (!run.failure.empty()) return "failed";
  if (run.complete()) return "finished";
  if (run.process == RunProcess::Running) return kRunning;
  if (run.process == RunProcess::Interrupted) return kInterrupted;
  return run.stops.empty() ? "not run" : "stopped";
}

constexpr int kDigitsInTable = 6;
constexpr int kAllDigits = 17;

std::string text_of(std::optional<double> value, int digits) {
  return value ? fmt::format("{:.{}g}", *value, digits) : "";
}

std::optional<double> value_of(const Stop& stop, const std::string& name) {
  const auto found = stop.values.find(name);
  return found == stop.values.end() ? std::nullopt : found->second;
}

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

std::string csv_line(std::vector<std::string> cells) {
  for (std::string& cell : cells) cell = csv_cell(cell);
  return fmt::format("{}\n", fmt::join(cells, ","));
}

}  // namespace

Stop read_report(const std::string& path, int64_t stop_after) {
  const Json report = parse_json(read_file(path), path, ErrorKind::DataLoss);
  Stop stop;
  stop.stop_after = stop_after;
  stop.steps = value_in<int64_t>(report, "steps", path);
  stop.complete = value_in<bool>(report, "complete", path);
  stop.weights_sha256 = value_in<std::string>(report, "weights_sha256", path);
  for (const char* name : {"loss", "examples_per_second", "seconds"}) {
    if (report.contains(name)) stop.values[name] = number_of(report.at(name));
  }
  if (report.contains("metrics")) {
    for (const auto& [name, value] : report.at("metrics").items()) stop.values[name] = number_of(value);
  }
  return stop;
}

const Stop* SweepRun::at(const Stage& stage) const {
  const auto found =
      std::find_if(stops.begin(), stops.end(), [&](const Stop& stop) { return stop.reaches(stage); });
  return found == stops.end() ? nullptr : &*found;
}

const Stop* SweepRun::latest() const {
  if (partial) return &*partial;
  return stops.empty() ? nullptr : &stops.back();
}

Json to_json(const SweepResults& results, const SweepGoal& goal) {
  Json runs = Json::array();
  for (const SweepRun& run : results.runs) {
    Json values = Json::object();
    for (size_t i = 0; i < results.settings.size(); ++i) values[results.settings[i]] = run.values[i];
    Json stops = Json::array();
    for (const Stop& stop : run.stops) stops.push_back(json_of(stop));
    runs.push_back({{"name", run.name},
                    {"set", values},
                    {"state", state_of(run)},
                    {"seconds", run.seconds},
                    {"restarts", run.restarts},
                    {"failure", run.failure},
                    {"stops", stops}});
    if (run.partial) runs.back()["partial"] = json_of(*run.partial);
  }
  return {{"command", results.command},
          {"by", goal.name},
          {"goal", goal.maximum ? "max" : "min"},
          {"settings", results.settings},
          {"runs", runs}};
}

SweepResults read_results(const std::string& path) {
  const Json json = parse_json(read_file(path), path, ErrorKind::DataLoss);
  SweepResults results;
  try {
    json.at("command").get_to(results.command);
    json.at("settings").get_to(results.settings);
    for (const Json& entry : json.at("runs")) {
      SweepRun run;
      run.name = value_in<std::string>(entry, "name", path);
      for (const std::string& name : results.settings)
        run.values.push_back(value_in<std::string>(entry.at("set"), name, path));
      run.seconds = value_in<double>(entry, "seconds", path);
      run.restarts = value_in<int64_t>(entry, "restarts", path);
      run.failure = value_in<std::string>(entry, "failure", path);
      for (const Json& stop : entry.at("stops")) run.stops.push_back(stop_from(stop, path));
      const auto state = value_in<std::string>(entry, "state", path);
      if (state == kRunning || state == kInterrupted) run.process = RunProcess::Interrupted;
      if (entry.contains("partial")) run.partial = stop_from(entry.at("partial"), path);
      results.runs.push_back(std::move(run));
    }
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorKind::DataLoss, "{} is not the file of a sweep: {}", path, error.what());
  }
  return results;
}

bool is_better(const SweepGoal& goal, const Stop& one, const Stop& other) {
  const auto first = value_of(one, goal.name);
  const auto second = value_of(other, goal.name);
  if (!first || !second) return first.has_value();
  return goal.maximum ? *first > *second : *first < *second;
}

std::vector<const SweepRun*> ranked(const SweepResults& results, const SweepGoal& goal) {
  std::vector<const SweepRun*> order;
  for (const SweepRun& run : results.runs) order.push_back(&run);
  std::stable_sort(order.begin(), order.end(), [&](const SweepRun* one, const SweepRun* other) {
    const Stop* const first = one->latest();
    const Stop* const second = other->latest();
    if (first == nullptr || second == nullptr) return first != nullptr && second == nullptr;
    if (first->complete != second->complete) return first->complete;
    if (!first->complete && first->steps != second->steps) return first->steps > second->steps;
    return is_better(goal, *first, *second);
  });
  return order;
}

std::string table_of(const SweepResults& results, const SweepGoal& goal) {
  std::vector<std::vector<std::string>> rows = {{"run"}};
  rows[0].insert(rows[0].end(), results.settings.begin(), results.settings.end());
  rows[0].insert(rows[0].end(), {"steps", goal.name, "seconds", "state"});
  for (const SweepRun* run : ranked(results, goal)) {
    std::vector<std::string> row = {run->name};
    row.insert(row.end(), run->values.begin(), run->values.end());
    const Stop* const latest = run->latest();
    row.push_back(latest != nullptr ? std::to_string(latest->steps) : "");
    row.push_back(latest != nullptr ? text_of(value_of(*latest, goal.name), kDigitsInTable) : "");
    if (latest != nullptr && row.back().empty()) row.back() = "none";
    row.push_back(fmt::format("{:.1f}", run->seconds));
    row.push_back(state_of(*run));
    rows.push_back(std::move(row));
  }
  std::vector<size_t> widths(rows[0].size());
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    for (size_t i = 0; i + 1 < row.size(); ++i)
      text +=
          i == 0 ? fmt::format("{:<{}}  ", row[i], widths[i]) : fmt::format("{:>{}}  ", row[i], widths[i]);
    text += row.back() + "\n";
  }
  return text;
}

std::string csv_of(const SweepResults& results, const SweepGoal& goal) {
  std::set<std::string> names;
  for (const SweepRun& run : results.runs) {
    for (const Stop& stop : run.stops) {
      for (const auto& [name, value] : stop.values) names.insert(name);
    }
    if (run.partial) {
      for (const auto& [name, value] : run.partial->values) names.insert(name);
    }
  }
  names.erase("seconds");
  std::vector<std::string> header = {"run"};
  header.insert(header.end(), results.settings.begin(), results.settings.end());
  header.insert(header.end(), {"state", "steps", "seconds", "restarts", "weights_sha256"});
  header.insert(header.end(), names.begin(), names.end());
  std::string text = csv_line(header);
  for (const SweepRun* run : ranked(results, goal)) {
    const Stop none;
    const Stop& last = run->latest() != nullptr ? *run->latest() : none;
    std::vector<std::string> cells = {run->name};
    cells.insert(cells.end(), run->values.begin(), run->values.end());
    cells.insert(cells.end(),
                 {state_of(*run), std::to_string(last.steps), fmt::format("{:.3f}", run->seconds),
                  std::to_string(run->restarts), last.weights_sha256});
    for (const std::string& name : names) cells.push_back(text_of(value_of(last, name), kAllDigits));
    text += csv_line(cells);
  }
  return text;
}

}  // namespace tutti

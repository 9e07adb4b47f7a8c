#include "tutti/train/run_state.h"

#include <array>
#include <chrono>
#include <limits>
#include <utility>

#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/hashes.h"
#include "tutti/base/json.h"

namespace tutti {
namespace {

using Phase = RunState::Phase;

constexpr std::array<std::pair<Phase, const char*>, 4> kPhases = {{{Phase::Training, "training"},
                                                                   {Phase::Complete, "complete"},
                                                                   {Phase::Interrupted, "interrupted"},
                                                                   {Phase::Stopped, "stopped"}}};

const char* name_of(Phase phase) {
  for (const auto& [value, name] : kPhases) {
    if (value == phase) return name;
  }
  return "";
}

Phase phase_named(const std::string& text, const std::string& path) {
  for (const auto& [value, name] : kPhases) {
    if (text == name) return value;
  }
  fail(ErrorKind::DataLoss, "{}: '{}' is not a phase of a run", path, text);
}

int64_t count_of(const Json& json, const char* name, const std::string& path) {
  const auto count = value_in<int64_t>(json, name, path);
  if (count < 0) fail(ErrorKind::DataLoss, "{}: '{}' is {}, expected 0 or more", path, name, count);
  return count;
}

}  // namespace

double unix_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void write_run_state(const std::string& folder, const RunState& state) {
  const Json json = {{"id", state.id},           {"phase", name_of(state.phase)},
                     {"fit", state.fit},         {"step", state.step},
                     {"chief", state.chief},     {"first_sequence", state.first_sequence},
                     {"launch", state.launch},   {"web", state.web},
                     {"since", state.since},     {"failures", state.failures},
                     {"workers", state.workers}, {"end_step", state.end_step},
                     {"change", state.change},   {"error", state.error}};
  replace_file(folder + "/" + kRunStateName, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::optional<RunState> read_run_state(const std::string& folder) {
  const std::string path = folder + "/" + kRunStateName;
  if (!path_exists(path)) return std::nullopt;
  const Json json = parse_json(read_file(path), path, ErrorKind::DataLoss);
  RunState state;
  state.id = value_in<std::string>(json, "id", path);
  state.phase = phase_named(value_in<std::string>(json, "phase", path), path);
  state.fit = count_of(json, "fit", path);
  state.step = count_of(json, "step", path);
  state.first_sequence = count_of(json, "first_sequence", path);
  state.launch = value_in<std::string>(json, "launch", path);
  state.chief = value_in<std::string>(json, "chief", path);
  state.web = value_in<std::string>(json, "web", path, "");
  state.workers = value_in<int64_t>(json, "workers", path, 0);
  state.end_step = value_in<int64_t>(json, "end_step", path, 0);
  state.change = value_in<std::string>(json, "change", path, "");
  state.error = value_in<std::string>(json, "error", path, "");
  state.failures = value_in<int64_t>(json, "failures", path, 0);
  state.since = value_in<double>(json, "since", path, unix_now());
  return state;
}

std::string launch_of(const Context& context) {
  const Identity& identity = context.identity();
  if (identity.launch.empty()) return "";
  Sha256 hash;
  hash.update(as_bytes(identity.launch));
  return hash.hex().substr(0, 16);
}

}  // namespace tutti

// tutti status: how far a run is, from its log directory or from the page of --web.
#include <chrono>
#include <cmath>
#include <fcntl.h>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/plot/plotted_run.h"
#include "tutti/base/address.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/base/text.h"
#include "tutti/base/this_host.h"
#include "tutti/store/checkpoint.h"
#include "tutti/store/folder_lock.h"
#include "tutti/train/run_state.h"
#include "tutti/web/http.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

constexpr int kIsUnwell = 1;
constexpr std::chrono::seconds kPatienceWithPage{5};

double unix_time(fs::file_time_type time) {
  const auto ago = fs::file_time_type::clock::now() - time;
  return std::chrono::duration<double>((std::chrono::system_clock::now() - ago).time_since_epoch()).count();
}

double time_of(const fs::path& path) {
  std::error_code ignored;
  return unix_time(fs::last_write_time(path, ignored));
}

// Returns true if the chief of this run lives. It holds the lock of the folder; if locks do not reach it, it
// touches its file every ten seconds.
bool is_alive(const std::string& logdir, const RunState& state) {
  constexpr double kSilent = 30;  // seconds
  if (store::lock_holder(logdir)) return true;
  const std::string path = logdir + "/lock";
  const bool is_here = state.chief.find(fmt::format(" on host {},", host_name())) != std::string::npos;
  if (is_here && path_exists(path) &&
      try_to_lock(FileDescriptor(path, O_RDONLY), path) != LockResult::Unsupported)
    return false;
  return unix_now() - time_of(logdir + "/" + kRunStateName) < kSilent;
}

const char* phase_of(const std::string& logdir, const RunState& state) {
  switch (state.phase) {
    case RunState::Phase::Complete:
      return "complete";
    case RunState::Phase::Interrupted:
      return "interrupted";
    case RunState::Phase::Stopped:
      return "stopped";
    case RunState::Phase::Training:
      return is_alive(logdir, state) ? "training" : "died";
  }
  return "";
}

// The step is the last one that any file tells, of which the file that tells it last tells the time.
void see_step(Json& training, int64_t step, double time) {
  const auto seen = training.value("step", int64_t{-1});
  if (step < seen) return;
  training["step_time"] = step == seen ? std::max(time, training["step_time"].get<double>()) : time;
  training["step"] = step;
}

// Returns when an event file of the folder was written last.
double events_time(const std::string& logdir) {
  double newest = 0;
  for (const auto& entry : fs::directory_iterator(logdir)) {
    if (entry.path().filename().string().starts_with("events.out."))
      newest = std::max(newest, time_of(entry));
  }
  return newest;
}

// Adds what the run has written into its event files and its report.
void add_values(const std::string& logdir, Json& training) {
  plot::PlottedRun run;
  try {
    run = plot::read_run(logdir);
  } catch (const Error&) {
    return;  // there are none, or a file is damaged: the rest is worth showing all the same
  }
  const double written = events_time(logdir);
  for (const auto& [tag, points] : run.scalars) {
    const chart::Point& last = points.back();
    if (!std::isfinite(last.y)) continue;
    if (tag == "loss") {
      training["loss"] = last.y;
      training["loss_step"] = static_cast<int64_t>(last.x);
    } else if (tag == "examples_per_second" || tag == "learning_rate") {
      training[tag] = last.y;
    } else {
      training["values"][tag] = last.y;
    }
    see_step(training, static_cast<int64_t>(last.x), written);
  }
}

bool has(const Json& object, const char* key) { return object.contains(key) && !object.at(key).is_null(); }

std::string trouble_of(const RunState& state, const std::string& phase) {
  if (!state.error.empty())
    return fmt::format("the chief has ended with an error: {}; run the program again to continue",
                       state.error);
  return phase == "died" ? "the chief has ended without a word; run the program again to continue" : "";
}

// Returns the status of a page.
Json status_at(const std::string& address, const std::string& secret) {
  const web::Answer answer = web::get(address, "/status.json", secret, kPatienceWithPage);
  if (answer.status == 401 || answer.status == 403)
    fail(ErrorKind::InvalidArgument, "{}: {}", address, answer.body);
  if (answer.status != 200) fail(ErrorKind::DataLoss, "{} has no /status.json ({})", address, answer.status);
  return parse_json(answer.body, address + "/status.json", ErrorKind::DataLoss);
}

// Returns the status of a log directory in the form of status.json. The page of a run that lives knows more.
Json status_in(const std::string& logdir, const std::string& secret) {
  const std::optional<RunState> state = read_run_state(logdir);
  const std::string checkpoint = store::newest_checkpoint(logdir);
  if (!state && checkpoint.empty())
    fail(ErrorKind::InvalidArgument,
         "{}: no run is there: give the --logdir of a run, or HOST:PORT of its --web{}", logdir,
         runs_below(logdir,
                    [](const std::string& folder) { return path_exists(folder + "/" + kRunStateName); }));
  const std::string phase = state ? phase_of(logdir, *state) : "unknown";
  if (phase == "training" && !state->web.empty()) {
    try {
      return status_at(state->web, secret);
    } catch (const Error&) {
      // It may be on another host, or have another secret.
    }
  }
  Json training = {{"name", ""}, {"phase", phase}, {"folder", logdir}};
  if (state) {
    see_step(training, state->step, time_of(logdir + "/" + kRunStateName));
    if (state->end_step > 0) training["end_step"] = state->end_step;
    if (state->workers > 0) training["workers"] = state->workers;
    if (!state->change.empty()) training["change"] = state->change;
  }
  if (!checkpoint.empty()) {
    const store::Manifest manifest = store::read_folder_manifest(checkpoint);
    training["checkpoint_step"] = manifest.step;
    training["checkpoint_time"] = time_of(checkpoint);
    see_step(training, manifest.step, time_of(checkpoint));
    if (const auto end = manifest.state.value("end_step", int64_t{0}); end > 0 && !has(training, "end_step"))
      training["end_step"] = end;
  }
  add_values(logdir, training);
  return {{"chief", state ? state->chief : ""},
          {"now", unix_now()},
          {"trouble", state ? trouble_of(*state, phase) : ""},
          {"trainings", Json::array({training})}};
}

std::string age(double seconds) {
  if (seconds < 120) return fmt::format("{:.0f} s", std::max(0.0, seconds));
  return seconds < 7200 ? fmt::format("{:.0f} min", seconds / 60) : fmt::format("{:.1f} h", seconds / 3600);
}

void print_line(const std::string& label, const std::string& text) {
  fmt::print("  {:<20} {}\n", label, text);
}

void print_training(const Json& training, double now) {
  const auto text = [&](const char* key) { return has(training, key) ? training.at(key).dump() : "unknown"; };
  const auto number = [&](const char* key) { return training.at(key).get<double>(); };
  const auto name = training.value("name", "");
  const auto folder = training.value("folder", "");
  fmt::print("{}{}{}\n", name.empty() ? "" : name + ": ", training.value("phase", "unknown"),
             folder.empty() ? "" : fmt::format(" ({})", folder));
  // Files tell the step of a run that still trains with a delay.
  const bool is_old = has(training, "step_time") && training.value("phase", "") == "training";
  print_line("step", text("step") + (has(training, "end_step") ? " of " + text("end_step") : "") +
                         (has(training, "epoch") ? ", epoch " + text("epoch") : "") +
                         (is_old ? fmt::format(", as of {} ago", age(now - number("step_time"))) : ""));
  if (has(training, "loss"))
    print_line("loss", fmt::format("{:.6g} after step {}", number("loss"), text("loss_step")));
  if (has(training, "examples_per_second"))
    print_line("examples a second", fmt::format("{:.4g}", number("examples_per_second")));
  if (has(training, "workers")) print_line("workers", text("workers"));
  if (has(training, "change")) print_line("last change", training.at("change").get<std::string>());
  if (has(training, "checkpoint_step"))
    print_line("checkpoint",
               fmt::format("step {}, {} ago", text("checkpoint_step"), age(now - number("checkpoint_time"))));
  const Json values = training.value("values", Json::object());
  for (const auto& [of_value, value] : values.items()) {
    if (value.is_number()) print_line(of_value, fmt::format("{:.6g}", value.get<double>()));
  }
}

void print_status(const Json& status) {
  constexpr size_t kEvents = 5;
  const auto now = status.value("now", 0.0);
  for (const Json& training : status.at("trainings")) print_training(training, now);
  if (status.at("trainings").empty()) fmt::print("no training has begun yet\n");
  if (const auto chief = status.value("chief", ""); !chief.empty()) print_line("chief", chief);
  if (const auto trouble = status.value("trouble", ""); !trouble.empty()) print_line("trouble", trouble);
  const Json events = status.value("events", Json::array());
  for (size_t i = events.size() - std::min(kEvents, events.size()); i < events.size(); ++i)
    print_line(age(now - events[i].at("time").get<double>()) + " ago",
               events[i].at("text").get<std::string>());
}

// Returns true if every training still makes steps, or has ended as it should.
bool is_well(const Json& status) {
  if (!status.value("trouble", "").empty()) return false;
  for (const Json& training : status.at("trainings")) {
    const auto phase = training.value("phase", "");
    if (phase == "interrupted" || phase == "unknown") return false;
  }
  return true;
}

}  // namespace

int status_command(const std::vector<std::string>& arguments, const Environment& environment) {
  CLI::App app(
      "Tells how far a run is: from its log directory, also after it has ended, or from the page of --web,\n"
      "which needs TUTTI_SECRET if it is on another machine. The exit code is 0 if the run makes steps or "
      "has\n"
      "ended as it should, and 1 if it was interrupted, has died, or makes no progress.",
      "tutti status");
  std::string run;
  app.add_option("RUN", run, "The --logdir of a run, or HOST:PORT of its --web")->required();
  bool as_json = false;
  app.add_flag("--json", as_json, "Print JSON, in the form of /status.json");
  if (!parse_arguments(app, arguments)) return 0;
  const std::string secret = environment.get("TUTTI_SECRET").value_or("");
  if (!path_exists(run) && run.find(':') == std::string::npos && !parse_int(run))
    fail(ErrorKind::InvalidArgument,
         "tutti status: there is no {}: give the --logdir of a run, or HOST:PORT of its --web", run);
  try {
    const Json status =
        path_exists(run) ? status_in(run, secret) : status_at(to_string(parse_page_address(run)), secret);
    if (as_json)
      fmt::print("{}\n", status.dump(2, ' ', false, Json::error_handler_t::replace));
    else
      print_status(status);
    return is_well(status) ? 0 : kIsUnwell;
  } catch (const Json::exception& error) {
    fail(ErrorKind::DataLoss, "{}: this is not the status of a run: {}", run, error.what());
  }
}

}  // namespace tutti

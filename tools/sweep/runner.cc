#include "tools/sweep/runner.h"

#include <algorithm>
#include <cerrno>
#include <deque>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <set>
#include <signal.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "tools/launch/child.h"
#include "tools/launch/cores.h"
#include "tools/launch/gpus.h"
#include "tools/plot/plot.h"
#include "tools/plot/plotted_run.h"
#include "tools/sweep/run_files.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/text.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;

// The interval at which deadlines are checked if no event wakes the sweep.
constexpr milliseconds kSweepLooksAround{500};
// The guardian of a killed sweep holds the lock of the sweep until it has killed the runs.
constexpr milliseconds kUntilGuardiansEnd{3000};
constexpr size_t kMostCurves = 100;  // of runs, in the plot

// On a file system without locks, nothing keeps a second sweep out of the folder.
FileDescriptor lock_folder(const std::string& folder) {
  make_directories(folder);
  const std::string path = folder + "/sweep.lock";
  FileDescriptor lock(path, O_RDWR | O_CREAT);
  const auto deadline = std::chrono::steady_clock::now() + kUntilGuardiansEnd;
  while (try_to_lock(lock, path) == LockResult::Taken) {
    if (std::chrono::steady_clock::now() > deadline)
      fail(ErrorKind::InvalidArgument,
           "{}: another tutti sweep works in this folder; wait for it, or choose another --logdir", folder);
    std::this_thread::sleep_for(milliseconds(10));
  }
  return lock;
}

SweepResults results_in(const std::string& path) {
  try {
    return read_results(path);
  } catch (const Error& error) {
    fail(error.kind(), "{}; without this file, the same command continues all runs from their checkpoints",
         error.what());
  }
}

// All slots get the same number of cores, since the bits of a run depend on its number of threads.
std::vector<int> cores_of_slot(size_t slot, int slots) {
  std::vector<int> cores = usable_cores();
  const size_t each = cores.size() / static_cast<size_t>(slots);
  if (each == 0) return {};
  return {cores.begin() + static_cast<int64_t>(slot * each),
          cores.begin() + static_cast<int64_t>((slot + 1) * each)};
}

}  // namespace

Sweep::Sweep(std::vector<std::string> command, const Environment& environment, SweepOptions options)
    : command_(std::move(command)),
      environment_(environment),
      options_(std::move(options)),
      lock_(lock_folder(options_.folder)),
      err_(STDERR_FILENO),
      signals_({SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGCHLD}),
      watch_(lock_.get()),
      restarts_(options_.runs.size()),
      pauses_(options_.runs.size()) {
  results_.command = command_;
  for (const SweepSetting& setting : options_.settings) results_.settings.push_back(setting.name);
  const size_t digits = std::to_string(options_.runs.size()).size();
  for (const RunValues& values : options_.runs)
    results_.runs.push_back({fmt::format("run-{:0{}}", results_.runs.size() + 1, digits), values});
  continue_sweep();
}

Sweep::~Sweep() {
  for (const Running& running : running_) kill(-running.pid, SIGKILL);
  constexpr milliseconds kTimeToEnd{10'000};
  watch_.end_all(kTimeToEnd);
  for (const Running& running : running_) waitpid(running.pid, nullptr, WNOHANG);
}

// Continues with the results of the sweep in this folder. Failed runs are restarted.
void Sweep::continue_sweep() {
  const std::string path = options_.folder + "/sweep.json";
  if (!path_exists(path)) return;
  SweepResults former = results_in(path);
  // Bytes that are not UTF-8 were replaced in the file.
  const auto text_of = [](const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  const auto settings_of = [&](const SweepResults& results) {
    Json all = Json::array({results.settings});
    for (const SweepRun& run : results.runs) all.push_back(run.values);
    return text_of(all);
  };
  const bool same_runs = settings_of(former) == settings_of(results_);
  if (!same_runs || text_of(former.command) != text_of(results_.command))
    fail(ErrorKind::InvalidArgument,
         "{}: this folder has a sweep of {}; choose another --logdir, or continue that sweep with its "
         "arguments",
         options_.folder, same_runs ? "another command" : "other settings");
  for (size_t i = 0; i < former.runs.size(); ++i) {
    former.runs[i].failure.clear();
    former.runs[i].values = results_.runs[i].values;
  }
  results_.runs = std::move(former.runs);
  require_value_in_reports();
}

int Sweep::run() {
  check_flags();
  for (size_t i = 0; i < stages_.size() && !signal_; ++i) {
    if (i == 0) {
      std::vector<size_t> all(results_.runs.size());
      for (size_t run = 0; run < all.size(); ++run) all[run] = run;
      train_all(all, stages_[0]);
      continue;
    }
    // If a run fails, the best of the stopped runs replaces it.
    for (size_t failures = 0; failures <= results_.runs.size() && !signal_; ++failures) {
      std::vector<size_t> chosen = best_at(stages_[i - 1], stages_[i].runs);
      std::erase_if(chosen, [&](size_t run) { return results_.runs[run].at(stages_[i]) != nullptr; });
      if (chosen.empty()) break;
      train_all(chosen, stages_[i]);
    }
  }
  write_results();
  link_best();
  if (!signal_) draw_plot();
  err_.pass_on();
  try {
    fmt::print("{}", table_of(results_, options_.goal));
  } catch (const std::exception&) {
    // The terminal has been closed. The results are in the files.
    if (!signal_) throw;
  }
  if (!signal_) return exit_code_;
  if (!options_.command_line.empty()) say("to continue this sweep: " + options_.command_line);
  return 128 + *signal_;
}

// Checks the flags before the first run is started, and finds out how many steps the runs make.
void Sweep::check_flags() {
  stages_ = {{0, results_.runs.size()}};
  std::optional<int64_t> steps;
  for (const size_t run : runs_to_check(options_.settings, options_.runs)) {
    const Json configuration = this->configuration(run);
    if (signal_) return;
    if (!options_.halving) continue;
    const auto found = configuration.find("steps");
    const int64_t of_run =
        found != configuration.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
    if (of_run == 0)
      fail(ErrorKind::InvalidArgument,
           "tutti sweep: --halving needs the number of steps; give --steps N to the program");
    if (steps && *steps != of_run)
      fail(
          ErrorKind::InvalidArgument,
          "tutti sweep: --halving compares runs after the same number of steps, but {} makes {} and {} makes "
          "{}; give --steps N to the program, or leave out --halving",
          results_.runs[0].name, *steps, results_.runs[run].name, of_run);
    steps = of_run;
  }
  if (steps) stages_ = halving_stages(results_.runs.size(), *steps, options_.least_steps);
}

// Returns the values of all flags of this run.
Json Sweep::configuration(size_t run) {
  std::vector<std::string> arguments = arguments_of(run);
  arguments.emplace_back("--print-config");
  const std::string log = options_.folder + "/check.log";
  replace_file(log, "");
  const auto outcome = await(start_process(0, std::move(arguments), log));
  if (signal_) return {};
  const auto found = outcome->success() ? find_configuration(read_file(log)) : std::nullopt;
  if (!found)
    fail(ErrorKind::InvalidArgument,
         "tutti sweep: the program does not accept the flags of {} with --print-config; it {}{}",
         results_.runs[run].name, outcome->describe(), last_lines(log));
  std::filesystem::remove(log);
  return *found;
}

std::string Sweep::name_of(const Running& running) const {
  return running.run == results_.runs.size() ? "the check of the flags" : results_.runs[running.run].name;
}

// Waits for a process that is not one of the runs. Returns nullopt after a signal.
std::optional<Outcome> Sweep::await(pid_t pid) {
  running_.push_back({results_.runs.size(), 0, pid, {}, Clock::now()});
  ended_check_.reset();
  while (!running_.empty()) {
    wait_for_events();
    handle_signals();
    reap();
  }
  return ended_check_ ? std::optional(ended_check_->second) : std::nullopt;
}

// Returns the best runs of a stage, without those that have failed since.
std::vector<size_t> Sweep::best_at(const Stage& former, size_t count) const {
  std::vector<size_t> candidates;
  for (size_t run = 0; run < results_.runs.size(); ++run) {
    if (results_.runs[run].failure.empty() && results_.runs[run].at(former) != nullptr)
      candidates.push_back(run);
  }
  std::stable_sort(candidates.begin(), candidates.end(), [&](size_t one, size_t other) {
    return is_better(options_.goal, *results_.runs[one].at(former), *results_.runs[other].at(former));
  });
  candidates.resize(std::min(candidates.size(), count));
  return candidates;
}

void Sweep::train_all(const std::vector<size_t>& runs, const Stage& stage) {
  std::deque<size_t> waiting;
  for (const size_t run : runs) {
    if (results_.runs[run].at(stage) == nullptr) waiting.push_back(run);
  }
  if (stages_.size() > 1 && !waiting.empty())
    say(fmt::format("{} run{} {}", waiting.size(), waiting.size() == 1 ? "" : "s",
                    stage.stop_after > 0 ? fmt::format("until step {}", stage.stop_after) : "to the end"));
  while (!running_.empty() || (!signal_ && (!waiting.empty() || !failed_.empty()))) {
    start_due();
    while (!waiting.empty() && !signal_ && has_free_slot()) {
      start(waiting.front(), stage);
      waiting.pop_front();
    }
    wait_for_events();
    handle_signals();
    reap();
  }
}

// Starts runs again whose pause is over.
void Sweep::start_due() {
  while (!signal_ && has_free_slot()) {
    const auto due = std::find_if(failed_.begin(), failed_.end(),
                                  [](const Restart& restart) { return Clock::now() >= restart.at; });
    if (due == failed_.end()) return;
    const Restart restart = *due;
    failed_.erase(due);
    start(restart.run, restart.stage);
  }
}

void Sweep::start(size_t run, const Stage& stage) {
  size_t slot = 0;
  const auto is_taken = [&] {
    return std::any_of(running_.begin(), running_.end(),
                       [&](const Running& other) { return other.slot == slot; });
  };
  while (is_taken()) ++slot;
  make_directories(path_of(run));
  // The report of an earlier process must not be taken for the report of this process.
  std::filesystem::remove(path_of(run, "report.json"));
  std::vector<std::string> arguments = arguments_of(run);
  arguments.push_back("--logdir=" + path_of(run));
  arguments.push_back("--report=" + path_of(run, "report.json"));
  arguments.emplace_back("--resume=auto");
  arguments.push_back(fmt::format("--stop-after={}", stage.stop_after));
  const pid_t pid = start_process(slot, std::move(arguments), path_of(run, "output.log"));
  running_.push_back({run, slot, pid, stage, Clock::now()});
  results_.runs[run].process = RunProcess::Running;
  write_results();
}

std::vector<std::string> Sweep::arguments_of(size_t run) const {
  std::vector<std::string> arguments = command_;
  for (size_t i = 0; i < options_.settings.size(); ++i)
    arguments.push_back(fmt::format("--{}={}", options_.settings[i].name, results_.runs[run].values[i]));
  return arguments;
}

pid_t Sweep::start_process(size_t slot, std::vector<std::string> arguments, const std::string& log) {
  ChildOptions child{.output = ChildOutput::File, .output_file = log};
  child.cores = cores_of_slot(slot, options_.slots);
  std::map<std::string, std::string> variables = environment_.variables();
  // For programs that do not determine their cores themselves.
  variables.emplace("OMP_NUM_THREADS", std::to_string(std::max<size_t>(1, child.cores.size())));
  const std::vector<std::string> gpus = visible_gpus(environment_);
  if (!gpus.empty()) variables["CUDA_VISIBLE_DEVICES"] = gpus[slot % gpus.size()];
  for (const auto& [name, value] : variables) child.environment.push_back(fmt::format("{}={}", name, value));
  watch_.enrol(child);
  return start_child(arguments, child).pid;
}

void Sweep::wait_for_events() {
  err_.pass_on();
  pollfd event{signals_.descriptor(), POLLIN, 0};
  milliseconds timeout = kSweepLooksAround;
  const auto wake_at = [&](Clock::time_point time) {
    timeout = std::clamp(std::chrono::ceil<milliseconds>(time - Clock::now()), milliseconds(1), timeout);
  };
  if (kill_at_) wake_at(*kill_at_);
  if (has_free_slot()) {
    for (const Restart& restart : failed_) wake_at(restart.at);
  }
  poll(&event, 1, static_cast<int>(timeout.count()));
  if (!kill_at_ || Clock::now() < *kill_at_) return;
  for (const Running& running : running_) kill(-running.pid, SIGKILL);
}

// Passes the first signal on, and gives the runs time to write checkpoints. A second signal kills them, but
// not SIGHUP, which is sent twice when a terminal is closed.
void Sweep::handle_signals() {
  while (const std::optional<int> signal = signals_.next()) {
    if (*signal == SIGCHLD) continue;
    if (kill_at_) {
      if (*signal != SIGHUP) kill_at_ = Clock::now();
      continue;
    }
    signal_ = *signal;
    if (!running_.empty())
      say(fmt::format(
          "received {}: the runs save checkpoints and end, within {} s; a second signal kills them",
          signal_name(*signal),
          std::chrono::duration_cast<std::chrono::seconds>(options_.interrupt_grace).count()));
    stop_all();
  }
}

void Sweep::stop_all() {
  kill_at_ = Clock::now() + options_.interrupt_grace;
  for (const Restart& restart : std::exchange(failed_, {}))
    results_.runs[restart.run].process = RunProcess::Interrupted;
  for (const Running& running : running_) {
    kill(-running.pid, SIGTERM);
    kill(-running.pid, SIGCONT);
  }
}

void Sweep::reap() {
  int status = 0;
  for (pid_t pid = waitpid(-1, &status, WNOHANG | WUNTRACED); pid > 0;
       pid = waitpid(-1, &status, WNOHANG | WUNTRACED)) {
    const bool stopped = WIFSTOPPED(status);
    if (pid == watch_.guardian()) {
      stopped ? watch_.continue_guardian() : watch_.replace_guardian();
      continue;
    }
    const auto found = std::find_if(running_.begin(), running_.end(),
                                    [&](const Running& running) { return running.pid == pid; });
    if (found == running_.end()) continue;  // a grandchild whose parent ended before it
    if (stopped) {
      say(fmt::format("{} (pid {}) was stopped by {}; continue it with kill -CONT {}", name_of(*found), pid,
                      signal_name(WSTOPSIG(status)), pid));
      continue;
    }
    const Running ended = *found;
    running_.erase(found);
    kill(-pid, SIGKILL);  // ends processes that this one has left behind in its group
    if (ended.run == results_.runs.size())
      ended_check_ = {pid, Outcome(status)};
    else
      handle_ended(ended, Outcome(status));
  }
}

void Sweep::handle_ended(const Running& ended, const Outcome& outcome) {
  SweepRun& run = results_.runs[ended.run];
  run.seconds += std::chrono::duration<double>(Clock::now() - ended.started).count();
  run.process = RunProcess::Ended;
  const auto [report, problem] = find_stop(path_of(ended.run, "report.json"), ended.stage.stop_after);
  const bool is_stop = outcome.success() && report && report->reaches(ended.stage);
  if (!is_stop && report && !report->complete) run.partial = report;
  if (is_stop)
    handle_stop(ended.run, *report);
  else if (signal_)
    run.process = RunProcess::Interrupted;
  else if (!outcome.success())
    handle_failure(ended, outcome);
  else
    give_up(ended.run, 1, "ended with exit code 0, but " + problem);
  write_results();
}

void Sweep::handle_stop(size_t number, const Stop& stop) {
  SweepRun& run = results_.runs[number];
  run.stops.push_back(stop);
  run.partial.reset();
  try {
    require_value_in_reports();
  } catch (const Error&) {  // the sweep ends, and the other runs with it
    for (const Running& running : running_) results_.runs[running.run].process = RunProcess::Interrupted;
    write_results();
    throw;
  }
  const auto found = stop.values.find(options_.goal.name);
  const auto value = found == stop.values.end() ? std::nullopt : found->second;
  say(fmt::format("{} {} step {}: {} {}", run.name, stop.complete ? "finished after" : "stopped after",
                  stop.steps, options_.goal.name, value ? fmt::format("{:.6g}", *value) : "has no value"));
}

// A metric may have no value for the predictions of one run; but if no run has it, its name is wrong.
// Only the program knows its metrics, so the names are known with the first report, also a report of an
// earlier process.
void Sweep::require_value_in_reports() {
  std::set<std::string> known;
  std::string first;
  for (const SweepRun& run : results_.runs) {
    for (const Stop& stop : run.stops) {
      if (first.empty()) first = run.name;
      for (const auto& [name, value] : stop.values) known.insert(name);
    }
  }
  if (known.empty() || known.contains(options_.goal.name)) return;
  fail(ErrorKind::InvalidArgument, "tutti sweep: the report of {} has no '{}', only {}{}", first,
       options_.goal.name, fmt::join(known, ", "),
       did_you_mean(options_.goal.name, std::vector<std::string>(known.begin(), known.end())));
}

// Restarts a run that was killed or has lost a task: it continues from its newest checkpoint.
void Sweep::handle_failure(const Running& ended, const Outcome& outcome) {
  SweepRun& run = results_.runs[ended.run];
  const int code = outcome.exit_code();
  // A shell and `tutti run` report with exit code 128 + n that a process was killed.
  const bool may_restart =
      code > 128 || code == exit_code(ErrorKind::PeerLost) || code == exit_code(ErrorKind::Timeout);
  int& restarts = restarts_[ended.run];
  if (may_restart && restarts < options_.restarts) {
    ++run.restarts;
    const std::chrono::seconds pause = pauses_[ended.run].next(Clock::now() - ended.started);
    say(fmt::format("{} {}; restart {} of {}{}", run.name, outcome.describe(), ++restarts, options_.restarts,
                    describe_pause(pause)));
    failed_.push_back({ended.run, ended.stage, Clock::now() + pause});
    return;
  }
  give_up(ended.run, code, outcome.describe());
}

void Sweep::give_up(size_t run, int code, const std::string& why) {
  results_.runs[run].failure = why;
  if (exit_code_ == 0) exit_code_ = code;
  const std::string log = path_of(run, "output.log");
  const std::string end = last_lines(log);
  say(fmt::format("{} {}{}", results_.runs[run].name, why,
                  end.empty() ? "" : fmt::format("; the end of {}:{}", log, end)));
}

void Sweep::write_results() {
  replace_file(options_.folder + "/sweep.json",
               to_json(results_, options_.goal).dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  replace_file(options_.folder + "/sweep.csv", csv_of(results_, options_.goal));
}

// Some file systems have no symbolic links; the best run is the first of the table.
void Sweep::link_best() {
  const SweepRun* best = ranked(results_, options_.goal).front();
  if (best->stops.empty()) return;
  const std::string link = options_.folder + "/best";
  const std::string fresh = link + ".new";
  try {
    std::filesystem::remove(fresh);
    std::filesystem::create_directory_symlink(best->name, fresh);
    std::filesystem::rename(fresh, link);
  } catch (const std::filesystem::filesystem_error& error) {
    say(fmt::format("there is no link '{}' to the best run, {} ({})", link, best->name,
                    error.code().message()));
  }
}

// Draws the curves of the best runs, also of those that have failed. Runs that have written no numbers are
// left out.
void Sweep::draw_plot() {
  std::vector<std::string> paths;
  for (const SweepRun* run : ranked(results_, options_.goal)) {
    const std::string path = fmt::format("{}/{}", options_.folder, run->name);
    if (paths.size() == kMostCurves) break;
    try {
      if (!plot::read_run(path).scalars.empty()) paths.push_back(path);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::DataLoss)
        say(fmt::format("{} is not in the plot: {}", run->name, error.what()));
    }
  }
  if (paths.empty()) return;
  const std::string out = options_.folder + "/plot.svg";
  try {
    plot::plot_runs(paths, out);
    say(fmt::format("{} shows the curves of {} run{}", out, paths.size(), paths.size() == 1 ? "" : "s"));
  } catch (const Error& error) {
    say(fmt::format("there is no plot: {}", error.what()));
  }
}

void Sweep::say(const std::string& text) {
  err_.add("tutti sweep: " + text + "\n");
  err_.pass_on();
}

std::string Sweep::path_of(size_t run, const std::string& file) const {
  return fmt::format("{}/{}{}{}", options_.folder, results_.runs[run].name, file.empty() ? "" : "/", file);
}

}  // namespace tutti

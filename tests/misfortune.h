// A hook that kills and stops workers of a test: "1@5/before,2@7/stop" kills worker 1 before step 5, and
// stops worker 2 at step 7. "1@5/soon300" kills it 300 microseconds after a lane of step 5, and "1@5/server"
// lets it kill ps/1 before step 5; "server_within" is after a lane, "server_soon300" so many microseconds
// later, "server_told" after the step. "1@5/servers" kills ps/0 and ps/1. "1@5/after" kills worker 1 before
// batch 5 that it counts in the evaluation with this name, and "1@5/after-joined" waits there until a worker
// asks for a place.
#pragma once

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "tutti/base/text.h"
#include "tutti/cluster/context.h"
#include "tutti/comm/communicator.h"
#include "tutti/train/hook.h"

namespace tutti::testing {

// Returns the process of a parameter server that the launcher of this one has started.
inline pid_t server_beside_this(int64_t index) {
  std::ifstream children("/proc/" + std::to_string(getppid()) + "/task/" + std::to_string(getppid()) +
                         "/children");
  for (pid_t child = 0; children >> child;) {
    std::ifstream environment("/proc/" + std::to_string(child) + "/environ");
    bool is_server = false;
    bool has_index = false;
    for (std::string variable; std::getline(environment, variable, '\0');) {
      is_server = is_server || variable == "TUTTI_JOB_NAME=ps";
      has_index = has_index || variable == "TUTTI_TASK_INDEX=" + std::to_string(index);
    }
    if (is_server && has_index) return child;
  }
  throw std::runtime_error("there is no such server beside this process");
}

// Kills or stops the process of a worker that was not started again.
class Misfortune final : public tutti::Hook {
 public:
  explicit Misfortune(const std::string& text) {
    if (text.empty()) return;
    for (const std::string& one : split(text, ',')) {
      const size_t at = one.find('@');
      const size_t slash = one.find('/');
      if (at == std::string::npos || slash == std::string::npos) throw std::runtime_error(one);
      all_.push_back({parse_int(one.substr(0, at)).value(),
                      parse_int(one.substr(at + 1, slash - at - 1)).value(), one.substr(slash + 1)});
    }
  }

  void before_step(tutti::Training& training) override {
    meet(training, "before", SIGKILL);
    meet(training, "stop", SIGSTOP);
    meet(training, "leave", SIGTERM);
    meet(training, "preempt", SIGUSR1);
    meet(training, "saved", SIGKILL);
    meet(training, "exit", 0);
    dies_within_update = is_due(training.context, training.step, "update");
    dies_after_update = is_due(training.context, training.step, "updated");
    meet(training, "server", SIGKILL);
    meet(training, "servers", SIGKILL);
  }
  // While the trainer is made.
  void is_made(const tutti::Context& context) const { meet(context, 0, "made", SIGKILL); }
  // While the others begin the run, or after they have: at once or, at "begins300", so many microseconds
  // later.
  void begins(const tutti::Context& context) const {
    meet(context, 0, "begins", SIGKILL);
    die_soon(context, 0, "begins");
  }
  // At "exports300" so many microseconds after the export has begun.
  void exports(const tutti::Context& context) const { die_soon(context, 0, "exports"); }
  // Before batch number `batch` that this worker counts in an evaluation.
  void counts(const tutti::Context& context, const tutti::Group& group, const std::string& evaluation,
              int64_t batch) const {
    meet(context, batch, evaluation, SIGKILL);
    if (!is_due(context, batch, evaluation + "-joined")) return;
    while (!group.communicator->epochs()->change_is_due()) usleep(kPause);
    std::raise(SIGKILL);
  }
  // Before an update that counts from 1, by an optimiser of the program.
  void updates(const tutti::Context& context, int64_t step) const {
    meet(context, step - 1, "update", SIGKILL);
  }
  void is_between_fits(const tutti::Context& context) const { meet(context, 0, "between", SIGKILL); }
  // Between two lanes, while the gradients of the first may be on their way.
  void after_lane(tutti::Training& training, int64_t, const tutti::Batch&,
                  const tutti::LossOutput&) override {
    meet(training, "lane", SIGSEGV);
    meet(training, "server_within", SIGKILL);
    die_soon(training.context, training.step, "soon");
    die_soon(training.context, training.step, "server_soon");
  }
  void after_step(tutti::Training& training, const tutti::StepResult&) override {
    meet(training, "told", SIGKILL);
    meet(training, "server_told", SIGKILL);
  }
  void after_validation(tutti::Training& training, const std::map<std::string, double>&) override {
    meet(training, "validated", SIGKILL);
  }
  void end(tutti::Training& training) override { meet(training, "end", SIGKILL); }
  // Called by an optimiser in the middle of the update of a chunk, and after the last one of a step.
  static void is_within_update() {
    if (dies_within_update) std::raise(SIGKILL);
  }
  static void is_after_update() {
    if (dies_after_update) std::raise(SIGKILL);
  }

 private:
  struct One {
    int64_t worker;
    int64_t step;
    std::string place;
    bool is_over = false;  // before_step() is called again for a step that is made again
  };

  static inline bool dies_within_update = false;
  static inline bool dies_after_update = false;

  bool is_due(const tutti::Context& context, int64_t step, const std::string& place) const {
    return context.identity().life == 0 && std::any_of(all_.begin(), all_.end(), [&](const One& one) {
             return one.worker == context.task().index && one.step == step && one.place == place;
           });
  }
  // At "soon300" after 300 microseconds.
  void die_soon(const tutti::Context& context, int64_t step, const std::string& place) const {
    const bool is_of_server = place.starts_with("server");
    for (One& one : all_) {
      if (one.is_over || !one.place.starts_with(place) || !is_due(context, step, one.place)) continue;
      const auto time = parse_int(one.place.substr(place.size()));
      if (!time) continue;
      one.is_over = is_of_server;
      const pid_t pid = is_of_server ? server_beside_this(one.worker) : getpid();
      std::thread([wait = static_cast<useconds_t>(*time), pid] {
        usleep(wait);
        kill(pid, SIGKILL);
      }).detach();
    }
  }
  void meet(const tutti::Training& training, const std::string& place, int signal) const {
    meet(training.context, training.step, place, signal);
  }
  void meet(const tutti::Context& context, int64_t step, const std::string& place, int signal) const {
    if (context.identity().life > 0) return;
    for (One& one : all_) {
      if (one.is_over || one.worker != context.task().index || one.step != step || one.place != place)
        continue;
      if (!is_first(context, one)) continue;
      one.is_over = true;
      while (place == "saved" && !has_saved(context.config().checkpoints.logdir)) usleep(kPause);
      if (signal == 0) std::_Exit(0);
      if (place.starts_with("server")) {
        const bool both = place == "servers";
        for (const int64_t server : both ? std::vector<int64_t>{0, 1} : std::vector<int64_t>{one.worker})
          kill(server_beside_this(server), signal);
        continue;
      }
      if (signal == SIGSEGV) std::signal(SIGSEGV, SIG_DFL);
      std::raise(signal);
    }
  }

  static constexpr useconds_t kPause = 10'000;

  // Returns true if there is a checkpoint after the first step.
  static bool has_saved(const std::string& folder) {
    std::error_code none;
    const std::string newest = std::filesystem::read_symlink(folder + "/latest", none).string();
    return !newest.empty() && !newest.ends_with("ckpt-0");
  }

  // A job that is started again as a whole is spared what its log directory has seen.
  static bool is_first(const tutti::Context& context, const One& one) {
    const std::string& folder = context.config().checkpoints.logdir;
    if (folder.empty()) return true;
    const std::string mark = folder + "/befell-" + std::to_string(one.worker) + "-" + one.place;
    if (std::filesystem::exists(mark)) return false;
    std::ofstream(mark) << one.step;
    return true;
  }

  mutable std::vector<One> all_;
};

// Waits before the last steps until this many workers train together, or are about to: of those that are
// missing each may come alone, by a change after a step.
class AwaitWorld final : public tutti::Hook {
 public:
  explicit AwaitWorld(int64_t world) : world_(world) {}
  void before_step(tutti::Training& training) override {
    const int64_t missing = world_ - training.group.world;
    const int64_t later = training.end_step - training.step - 1;  // steps after this one
    if (missing <= 0 || later == 0 || later > missing) return;
    while (!training.group.communicator->epochs()->change_is_due()) usleep(kPause);
  }

 private:
  static constexpr useconds_t kPause = 10'000;
  const int64_t world_;
};

// Waits before each step but the first ones as long as this file exists, unless the workers are to change.
class Hold final : public tutti::Hook {
 public:
  explicit Hold(std::string file) : file_(std::move(file)) {}
  void before_step(tutti::Training& training) override {
    if (file_.empty() || training.step < kFree) return;
    while (std::filesystem::exists(file_) && !training.group.communicator->epochs()->change_is_due())
      usleep(kPause);
  }

 private:
  static constexpr useconds_t kPause = 10'000;
  static constexpr int64_t kFree = 5;
  const std::string file_;
};

// Makes the steps slow as long as this file exists.
class Dawdle final : public tutti::Hook {
 public:
  explicit Dawdle(std::string file) : file_(std::move(file)) {}
  void before_step(tutti::Training& /*training*/) override {
    if (!file_.empty() && std::filesystem::exists(file_)) usleep(kPause);
  }

 private:
  static constexpr useconds_t kPause = 100'000;
  const std::string file_;
};

}  // namespace tutti::testing

// A hook that kills and stops workers of a test: "1@5/before,2@7/stop" kills worker 1 before step 5, and
// stops worker 2 at step 7.
#pragma once

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include "tutti/base/text.h"
#include "tutti/cluster/context.h"
#include "tutti/comm/communicator.h"
#include "tutti/train/hook.h"

namespace tutti::testing {

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
  }
  // While the others begin the run, or after they have.
  void begins(const tutti::Context& context) const { meet(context, 0, "begins", SIGKILL); }
  void is_between_fits(const tutti::Context& context) const { meet(context, 0, "between", SIGKILL); }
  // Between two lanes, while the gradients of the first may be on their way.
  void after_lane(tutti::Training& training, int64_t, const tutti::Batch&,
                  const tutti::LossOutput&) override {
    meet(training, "lane", SIGSEGV);
  }
  void after_step(tutti::Training& training, const tutti::StepResult&) override {
    meet(training, "told", SIGKILL);
  }
  void after_validation(tutti::Training& training, const std::map<std::string, double>&) override {
    meet(training, "validated", SIGKILL);
  }
  void end(tutti::Training& training) override { meet(training, "end", SIGKILL); }

 private:
  struct One {
    int64_t worker;
    int64_t step;
    std::string place;
  };

  void meet(const tutti::Training& training, const std::string& place, int signal) const {
    meet(training.context, training.step, place, signal);
  }
  void meet(const tutti::Context& context, int64_t step, const std::string& place, int signal) const {
    if (context.identity().life > 0) return;
    for (const One& one : all_) {
      if (one.worker != context.task().index || one.step != step || one.place != place) continue;
      if (!is_first(context, one)) continue;
      while (place == "saved" && !has_saved(context.config().checkpoints.logdir)) usleep(kPause);
      if (signal == 0) std::_Exit(0);
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

  std::vector<One> all_;
};

// Waits before the last step until this many workers train together, or are about to.
class AwaitWorld final : public tutti::Hook {
 public:
  explicit AwaitWorld(int64_t world) : world_(world) {}
  void before_step(tutti::Training& training) override {
    if (training.group.world >= world_ || training.step + 2 != training.end_step) return;
    while (!training.group.communicator->epochs()->change_is_due()) usleep(kPause);
  }

 private:
  static constexpr useconds_t kPause = 10'000;
  const int64_t world_;
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

#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/simulation/fiber.h"
#include "tests/simulation/world.h"
#include "tools/launch/outcome.h"
#include "tutti/transport/members.h"

namespace tutti::simulation {

// A process of the simulated machine, which is one life of a worker. It can be killed at any time, and
// stopped: it does nothing then until it is continued, or killed.
class Process {
 public:
  // Runs from the next event on. `ended` is called once, from outside, when the process has ended.
  Process(World& world, const comm::Member& self, std::function<void(Process&)> program,
          std::function<void(Process&)> ended);

  // Called from outside, and from inside as a process may kill or stop itself.
  void kill();
  void stop(Time time);
  // Like SIGTERM.
  void ask_to_leave() { is_asked_to_leave_ = true; }

  // Called from inside.
  bool is_asked_to_leave() const { return is_asked_to_leave_; }
  // Ends the process as after SIGTERM.
  [[noreturn]] void leave();
  void sleep(Time time);
  // For calls that may not throw: returns false if it is killed. It then runs to its next sleep or its end,
  // and none of its calls may do anything.
  bool sleep_in_call(Time time);
  bool is_killed() const { return killed_; }
  // Begins to wait for wake() with this number; wait() then waits until it has come.
  int64_t begin_wait() { return ++wait_; }
  void wait();
  // From outside, at any time. Ignored unless the process waits with this number.
  void wake(int64_t wait);

  // The process that runs in this thread, or null.
  static Process* current();
  World& world() const { return world_; }
  const comm::Member& self() const { return self_; }
  std::string name() const;
  bool lives() const { return !outcome_; }
  bool stopped() const { return stopped_; }
  // Requires !lives().
  const Outcome& outcome() const { return *outcome_; }
  const std::string& error() const { return error_; }

 private:
  struct Killed {};
  struct Left {};
  void run();
  void resume();

  World& world_;
  const comm::Member self_;
  const std::function<void(Process&)> program_;
  const std::function<void(Process&)> on_end_;
  Fiber fiber_;
  std::optional<Outcome> outcome_;
  std::string error_;
  bool inside_ = false;
  bool killed_ = false;
  bool is_asked_to_leave_ = false;
  bool stopped_ = false;
  int64_t stops_ = 0;
  int64_t wait_ = 0;
  int64_t woken_ = 0;
};

}  // namespace tutti::simulation

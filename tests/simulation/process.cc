#include "tests/simulation/process.h"

#include <signal.h>
#include <utility>

#include "tutti/base/error.h"

namespace tutti::simulation {
namespace {

thread_local Process* running = nullptr;

}  // namespace

Process* Process::current() { return running; }

Process::Process(World& world, const comm::Member& self, std::function<void(Process&)> program,
                 std::function<void(Process&)> ended)
    : world_(world), self_(self), program_(std::move(program)), on_end_(std::move(ended)), fiber_([this] {
        run();
      }) {
  world_.after(0, [this, wait = begin_wait()] { wake(wait); });
}

std::string Process::name() const { return fmt::format("worker/{}.{}", self_.worker, self_.life); }

// As tutti::run() of a program.
void Process::run() {
  try {
    if (killed_) throw Killed();
    program_(*this);
    outcome_ = Outcome::exited(0);
  } catch (const Killed&) {
    outcome_ = Outcome(SIGKILL);
  } catch (const Left&) {
    outcome_ = Outcome::exited(128 + SIGTERM);
  } catch (const Error& error) {
    error_ = error.what();
    outcome_ = Outcome::exited(exit_code(error.kind()));
  }
  if (killed_) outcome_ = Outcome(SIGKILL);
}

void Process::resume() {
  inside_ = true;
  running = this;
  fiber_.resume();
  running = nullptr;
  inside_ = false;
  if (!fiber_.ended()) return;
  world_.log("{} {}{}{}", name(), outcome_->describe(), error_.empty() ? "" : ": ", error_);
  on_end_(*this);
}

void Process::kill() {
  if (inside_) throw Killed();
  if (!lives()) return;
  killed_ = true;
  resume();  // to its end, past everything on its stack
}

void Process::stop(Time time) {
  if (!lives() || stopped_) return;
  stopped_ = true;
  world_.log("{} is stopped for {} ms", name(), time / kMillisecond);
  world_.after(time, [this, stops = ++stops_] {
    if (stops != stops_ || !lives()) return;
    stopped_ = false;
    world_.log("{} is continued", name());
    if (woken_ == wait_) resume();
  });
  if (inside_) sleep(0);
}

void Process::leave() { throw Left(); }

void Process::sleep(Time time) {
  if (killed_) throw Killed();
  world_.after(time, [this, wait = begin_wait()] { wake(wait); });
  wait();
}

bool Process::sleep_in_call(Time time) {
  world_.after(time, [this, wait = begin_wait()] { wake(wait); });
  fiber_.pause();
  return !killed_;
}

void Process::wait() {
  if (killed_) throw Killed();
  fiber_.pause();
  if (killed_) throw Killed();
}

void Process::wake(int64_t wait) {
  if (!lives() || wait != wait_ || woken_ == wait_) return;
  woken_ = wait;
  if (!stopped_) resume();
}

}  // namespace tutti::simulation

#include "tutti/train/stop_signals.h"

#include <algorithm>
#include <atomic>
#include <exception>

namespace tutti {
namespace {

using Clock = std::chrono::steady_clock;

// A signal handler can only reach static variables. This is the only place in Tutti that needs them.
std::atomic<int> received_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);

std::atomic<Clock::rep> received_at{0};  // since the epoch of the clock
static_assert(std::atomic<Clock::rep>::is_always_lock_free);

constexpr std::chrono::seconds kWithSignal{10};

void record(int number) {
  if (received_signal.load() != 0) return;
  received_at.store(Clock::now().time_since_epoch().count());  // clock_gettime, which a handler may call
  received_signal.store(number);
}

// Runs as a signal handler. After the first signal, SIGTERM and SIGINT get their default action, so that a
// second one ends the process.
void note(int number) {
  for (const int ending : {SIGTERM, SIGINT}) ::signal(ending, SIG_DFL);
  record(number);
}

void note_preemption(int /*number*/) { record(SIGTERM); }

// Returns what was done at this signal before.
struct sigaction install(int number, void (*handler)(int) = note) {
  struct sigaction action {};
  struct sigaction old {};
  sigaction(number, nullptr, &old);
  if (number == SIGHUP && old.sa_handler == SIG_IGN) return old;  // the program was started by nohup
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;  // interrupted system calls are restarted
  sigemptyset(&action.sa_mask);
  sigaction(number, &action, nullptr);
  return old;
}

}  // namespace

StopSignals::StopSignals(const RunConfig& config)
    : listens_(config.training.stop_on_signals), exceptions_(std::uncaught_exceptions()) {
  if (!listens_) return;
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) old_.emplace_back(number, install(number));
}

StopSignals::~StopSignals() {
  const bool fails = std::uncaught_exceptions() > exceptions_ || std::current_exception() != nullptr;
  if (!listens_ || fails) return;
  for (const auto& [number, old] : old_) sigaction(number, &old, nullptr);
}

void StopSignals::also_stop_on(int signal) { install(signal, note_preemption); }

std::optional<int> StopSignals::received() const { return listens_ ? not_acted_on() : std::nullopt; }

std::optional<int> StopSignals::not_acted_on() {
  const int number = received_signal.load();
  return number == 0 ? std::nullopt : std::optional(number);
}

bool StopSignals::is_overdue(Clock::time_point waiting_since) {
  if (received_signal.load() == 0) return false;
  const Clock::time_point came{Clock::duration(received_at.load())};
  return Clock::now() >= std::max(came, waiting_since) + kWithSignal;
}

void StopSignals::forget() const { received_signal.store(0); }

}  // namespace tutti

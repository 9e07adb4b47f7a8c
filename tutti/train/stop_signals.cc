#include "tutti/train/stop_signals.h"

#include <atomic>

namespace tutti {
namespace {

// A signal handler can reach nothing but what is static: the one place in Tutti where something has to be.
std::atomic<int> received_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);

void note(int number) { received_signal.store(number); }

struct sigaction install(int number) {
  struct sigaction action {};
  struct sigaction old {};
  action.sa_handler = note;
  // The second signal finds the default action: whoever insists is obeyed. System calls under way go on.
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(number, &action, &old);
  return old;
}

}  // namespace

StopSignals::StopSignals() {
  old_term_ = install(SIGTERM);
  old_int_ = install(SIGINT);
}

StopSignals::~StopSignals() {
  sigaction(SIGTERM, &old_term_, nullptr);
  sigaction(SIGINT, &old_int_, nullptr);
}

std::optional<int> StopSignals::received() const {
  const int number = received_signal.load();
  return number == 0 ? std::nullopt : std::optional(number);
}

void StopSignals::forget() const { received_signal.store(0); }

}  // namespace tutti

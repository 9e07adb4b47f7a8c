#include "tutti/transport/shared/signal.h"

#include <ctime>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tutti::comm {
namespace {

void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Not FUTEX_PRIVATE_FLAG, since the word may be in memory shared by several processes.
void futex_wait(std::atomic<uint32_t>& word, uint32_t seen, std::chrono::milliseconds at_most) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(at_most);
  const std::chrono::nanoseconds rest = at_most - seconds;
  const timespec limit{seconds.count(), rest.count()};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

}  // namespace

// Both sides write before they read, so either the sleeper sees the new count, or it is seen and woken here.
void Signal::advance() {
  count.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers.load(std::memory_order_seq_cst) > 0) futex_wake_all(count);
}

bool wait_a_little(Signal& signal, uint32_t target, const WaitOptions& options) {
  for (int i = 0; i < options.spins; ++i) {
    if (signal.reached(target)) return true;
    pause_core();
  }
  if (signal.reached(target)) return true;
  signal.sleepers.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t seen = signal.count.load(std::memory_order_seq_cst);
  if (static_cast<int32_t>(seen - target) < 0) futex_wait(signal.count, seen, options.look_up);
  signal.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return signal.reached(target);
}

WaitOptions wait_options(bool a_core_each) {
  // About twenty microseconds: longer than a context switch takes, but too short to be noticed.
  return {.spins = a_core_each ? 1000 : 0};
}

}  // namespace tutti::comm

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace tutti::comm {

// A counter in memory that ranks share. It only increases, and ranks can wait for it. It has no constructor:
// memory filled with zeros is a valid Signal. Only data that is read together with it should be in the same
// cache line.
struct Signal {
  std::atomic<uint32_t> count;
  std::atomic<uint32_t> sleepers;

  // Increments the count. Only one rank may call this. Its earlier writes become visible to waiting ranks.
  void advance();
  bool reached(uint32_t target) const {
    return static_cast<int32_t>(count.load(std::memory_order_acquire) - target) >= 0;
  }
};

struct WaitOptions {
  int spins = 0;  // number of checks before sleeping in the kernel
  std::chrono::milliseconds look_up{20};
};

// Spins for a while, then sleeps in the kernel until the signal changes, but no longer than options.look_up.
// Returns true if the signal has reached the count.
bool wait_a_little(Signal& signal, uint32_t target, const WaitOptions& options);

// Waits until the signal has reached the count. Meanwhile calls `look_up`, which may throw, from time to
// time.
template <class LookUp>
void wait(Signal& signal, uint32_t target, const WaitOptions& options, const LookUp& look_up) {
  while (!wait_a_little(signal, target, options)) look_up();
}

// Returns options for waiting. Spinning is only worthwhile if each rank has a core of its own.
WaitOptions wait_options(bool a_core_each);

}  // namespace tutti::comm

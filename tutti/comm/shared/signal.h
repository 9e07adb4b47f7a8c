#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace tutti::comm {

// A counter in memory that ranks share, which goes up and can be waited for. Lies where it is put: no
// constructor but zeros. What is looked at together with it may lie beside it, in one cache line; nothing
// else should.
struct Signal {
  std::atomic<uint32_t> count;
  std::atomic<uint32_t> sleepers;

  // To be called by one rank alone. Makes what it has written before visible to those that wait.
  void advance();
  bool reached(uint32_t target) const {
    return static_cast<int32_t>(count.load(std::memory_order_acquire) - target) >= 0;
  }
};

struct WaitOptions {
  int spins = 0;  // looks before going to sleep in the kernel
  std::chrono::milliseconds look_up{20};
};

// Looks for a while whether the signal has reached the count, then sleeps in the kernel until it changes, but
// not for long; returns whether it has.
bool wait_a_little(Signal& signal, uint32_t target, const WaitOptions& options);

// Returns when the signal has reached the count. While it does not come, `look_up` is called every now and
// then, and may throw.
template <class LookUp>
void wait(Signal& signal, uint32_t target, const WaitOptions& options, const LookUp& look_up) {
  while (!wait_a_little(signal, target, options)) look_up();
}

// How long it pays to spin: not at all where ranks share a core.
WaitOptions wait_options(bool a_core_each);

}  // namespace tutti::comm

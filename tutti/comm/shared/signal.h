#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>

namespace tutti::comm {

// A counter in memory that ranks share, which goes up and can be waited for. Lies where it is put: no
// constructor but zeros.
struct alignas(64) Signal {
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

// Returns when the signal has reached the count. While it sleeps, `look_up` is called every now and then, and
// may throw.
void wait(Signal& signal, uint32_t target, const WaitOptions& options, const std::function<void()>& look_up);

// How long it pays to spin: not at all where ranks outnumber the cores.
WaitOptions wait_options(int ranks_on_host);

}  // namespace tutti::comm

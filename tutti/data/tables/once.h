#pragma once

#include <atomic>
#include <mutex>

namespace tutti::data {

// Runs a function once, for whichever thread comes first; the others wait. If the function throws, the next
// thread runs it again. (std::call_once hangs after an exception on some systems, GCC bug 66146, and leaves
// the thread sanitizer switched off.) Thread-safe.
class Once {
 public:
  template <class Body>
  void operator()(const Body& body) {
    if (is_done_.load(std::memory_order_acquire)) return;
    const std::lock_guard lock(mutex_);
    if (is_done_.load(std::memory_order_relaxed)) return;
    body();
    is_done_.store(true, std::memory_order_release);
  }
  bool is_done() const { return is_done_.load(std::memory_order_acquire); }

 private:
  std::mutex mutex_;
  std::atomic<bool> is_done_ = false;
};

}  // namespace tutti::data

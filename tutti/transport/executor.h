#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "tutti/transport/work.h"

namespace tutti::comm {

// A thread that runs operations in the order in which they are submitted. It starts with the first one. The
// destructor waits until all submitted operations have finished. Thread-safe.
class Executor {
 public:
  Executor() = default;
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // The operation is destroyed before its result is ready. Throws Overloaded if the thread cannot be started.
  Work run(std::function<void()> operation);
  // Waits until all submitted operations have finished.
  void drain();
  bool is_idle() const;
  // Returns true if the calling thread is the thread of an executor, in a function that was passed to
  // Work::then(). It must not wait for the executor.
  static bool is_in_callback();

 private:
  struct Task {
    std::function<void()> operation;
    std::shared_ptr<Work::End> end;
  };

  void carry_out();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> waiting_;  // all below: guarded by mutex_
  bool busy_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tutti::comm

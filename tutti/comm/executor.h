#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

#include "tutti/comm/work.h"

namespace tutti::comm {

// A thread that carries out operations in the order in which they are given to it. It starts with the first;
// the destructor lets it finish what it has. Thread-safe.
class Executor {
 public:
  Executor() = default;
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  Work run(std::function<void()> operation);
  // Returns when there is nothing left to do.
  void drain();

 private:
  void carry_out();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<void()>> waiting_;  // all below: guarded by mutex_
  bool busy_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tutti::comm

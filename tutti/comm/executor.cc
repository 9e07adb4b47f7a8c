#include "tutti/comm/executor.h"

#include <utility>

#include "tutti/base/start_thread.h"

namespace tutti::comm {

Executor::~Executor() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Work Executor::run(std::function<void()> operation) {
  // The result may be kept for long. It must not keep what the operation holds, such as the copy of a model
  // that is being saved, or the results of operations before it.
  std::packaged_task<void()> task(
      [operation = std::move(operation)]() mutable { std::exchange(operation, nullptr)(); });
  const std::shared_future<void> result = task.get_future().share();
  {
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable()) thread_ = start_thread("carrying out operations", [this] { carry_out(); });
    waiting_.push_back(std::move(task));
  }
  changed_.notify_all();
  return Work(result);
}

void Executor::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return waiting_.empty() && !busy_; });
}

void Executor::carry_out() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !waiting_.empty() || stopping_; });
    if (waiting_.empty()) return;
    std::packaged_task<void()> task = std::move(waiting_.front());
    waiting_.pop_front();
    busy_ = true;
    lock.unlock();
    task();
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace tutti::comm

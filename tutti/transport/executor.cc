#include "tutti/transport/executor.h"

#include <exception>
#include <utility>

#include "tutti/base/start_thread.h"

namespace tutti::comm {
namespace {

thread_local bool in_callback = false;  // NOLINT: what the calling thread does

}  // namespace

bool Executor::is_in_callback() { return in_callback; }

Executor::~Executor() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Work Executor::run(std::function<void()> operation) {
  const auto end = std::make_shared<Work::End>();
  {
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable()) thread_ = start_thread("carrying out operations", [this] { carry_out(); });
    waiting_.push_back({std::move(operation), end});
  }
  changed_.notify_all();
  return Work(end);
}

void Executor::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return waiting_.empty() && !busy_; });
}

bool Executor::is_idle() const {
  const std::lock_guard lock(mutex_);
  return waiting_.empty() && !busy_;
}

void Executor::carry_out() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !waiting_.empty() || stopping_; });
    if (waiting_.empty()) return;
    Task task = std::move(waiting_.front());
    waiting_.pop_front();
    busy_ = true;
    lock.unlock();
    std::exception_ptr error;
    try {
      // The result may be kept for long. It must not keep what the operation holds, such as the copy of a
      // model that is being saved, or the results of operations before it.
      std::exchange(task.operation, nullptr)();
    } catch (...) {
      error = std::current_exception();
    }
    in_callback = true;
    task.end->set(std::move(error));
    in_callback = false;
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace tutti::comm

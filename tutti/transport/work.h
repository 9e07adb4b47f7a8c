#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace tutti::comm {

// An operation that may still be running. A value type; several threads may wait for it. Nobody has to wait:
// the operation is carried out anyway, but then its failure is not reported before the next operation is
// called.
class Work {
 public:
  // The end of an operation, as the thread that carries it out tells it.
  class End {
   public:
    void set(std::exception_ptr error = nullptr) {
      std::vector<std::function<void()>> then;
      {
        const std::lock_guard lock(mutex_);
        error_ = std::move(error);
        ended_ = true;
        then.swap(then_);
      }
      changed_.notify_all();
      for (const auto& call : then) call();
    }

   private:
    friend class Work;
    std::mutex mutex_;
    std::condition_variable changed_;
    bool ended_ = false;  // all below: guarded by mutex_
    std::exception_ptr error_;
    std::vector<std::function<void()>> then_;
  };

  // Constructs a finished operation.
  Work() = default;
  explicit Work(std::shared_ptr<End> end) : end_(std::move(end)) {}

  // Waits until the tensors of the operation may be used again. Throws its error, at every call.
  void wait() const {
    if (!end_) return;
    std::unique_lock lock(end_->mutex_);
    end_->changed_.wait(lock, [this] { return end_->ended_; });
    if (end_->error_) std::rethrow_exception(end_->error_);
  }
  bool done() const {
    if (!end_) return true;
    const std::lock_guard lock(end_->mutex_);
    return end_->ended_;
  }
  // Calls the function once the operation has ended, well or not: in the thread that carries it out, or at
  // once. It may not throw.
  void then(std::function<void()> call) const {
    if (end_) {
      const std::lock_guard lock(end_->mutex_);
      if (!end_->ended_) return end_->then_.push_back(std::move(call));
    }
    call();
  }

 private:
  std::shared_ptr<End> end_;
};

}  // namespace tutti::comm

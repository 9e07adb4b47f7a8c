#pragma once

#include <chrono>
#include <future>
#include <utility>

namespace tutti::comm {

// An operation that may still be under way. A value; safe to wait for from several threads. It need not be
// waited for: the operation is carried out all the same, but then its failure is heard of only at the next
// one.
class Work {
 public:
  // One that is done.
  Work() = default;
  explicit Work(std::shared_future<void> result) : result_(std::move(result)) {}

  // Returns when the tensors of the operation may be used again; throws what went wrong, at every call.
  void wait() const {
    if (result_.valid()) result_.get();
  }
  bool done() const {
    return !result_.valid() || result_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

 private:
  std::shared_future<void> result_;
};

}  // namespace tutti::comm

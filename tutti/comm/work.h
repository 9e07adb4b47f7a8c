#pragma once

#include <chrono>
#include <future>
#include <utility>

namespace tutti::comm {

// An operation that may still be running. A value type; several threads may wait for it. Nobody has to wait:
// the operation is carried out anyway, but then its failure is not reported before the next operation is
// called.
class Work {
 public:
  // Constructs a finished operation.
  Work() = default;
  explicit Work(std::shared_future<void> result) : result_(std::move(result)) {}

  // Waits until the tensors of the operation may be used again. Throws its error, at every call.
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

#include "tutti/train/passive/mailbox.h"

#include <algorithm>
#include <utility>

#include "tutti/base/check.h"
#include "tutti/base/error.h"

namespace tutti::passive {

std::optional<Mailbox::Request> Mailbox::next(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  if (taken_ == nullptr) {
    changed_.wait_for(lock, timeout, [&] { return !waiting_.empty(); });
    if (waiting_.empty()) return std::nullopt;
    taken_ = waiting_.front();
    waiting_.pop_front();
  }
  return taken_->request;
}

void Mailbox::answer(rpc::Message message) { end(std::move(message), nullptr); }

void Mailbox::refuse(std::exception_ptr error) { end({}, std::move(error)); }

void Mailbox::end(rpc::Message message, std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  TUTTI_CHECK(taken_ != nullptr, "there is no request to answer");
  taken_->answer = std::move(message);
  taken_->error = std::move(error);
  taken_->done = true;
  taken_ = nullptr;
  changed_.notify_all();
}

bool Mailbox::owes_answer() const {
  const std::lock_guard lock(mutex_);
  return taken_ != nullptr;
}

bool Mailbox::is_there(uint64_t caller) const {
  const std::lock_guard lock(mutex_);
  return callers_.contains(caller);
}

rpc::Message Mailbox::serve(const rpc::Caller& caller, const std::string& method,
                            const rpc::Message& request) {
  std::unique_lock lock(mutex_);
  callers_.insert(caller.id);
  Waiting waiting{.request = {&caller, &method, &request}};
  waiting_.push_back(&waiting);
  changed_.notify_all();
  // A request that was taken is being read, so wait for its end even if the caller has gone.
  changed_.wait(lock, [&] { return waiting.done || (taken_ != &waiting && !callers_.contains(caller.id)); });
  if (!waiting.done) {
    std::erase(waiting_, &waiting);
    fail(ErrorKind::PeerLost, "the client has closed the connection");
  }
  if (waiting.error) std::rethrow_exception(waiting.error);
  return std::move(waiting.answer);
}

void Mailbox::gone(const rpc::Caller& caller) {
  const std::lock_guard lock(mutex_);
  callers_.erase(caller.id);
  changed_.notify_all();
}

}  // namespace tutti::passive

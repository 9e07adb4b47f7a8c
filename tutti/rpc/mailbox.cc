#include "tutti/rpc/mailbox.h"

#include <algorithm>
#include <utility>

#include "tutti/base/check.h"
#include "tutti/base/error.h"

namespace tutti::rpc {

std::optional<Mailbox::Request> Mailbox::next(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  TUTTI_CHECK(taken_ == nullptr, "the last request has not been answered");
  changed_.wait_for(lock, timeout, [&] { return !waiting_.empty(); });
  if (waiting_.empty()) return std::nullopt;
  taken_ = waiting_.front();
  waiting_.pop_front();
  taken_->taken = true;
  return taken_->request;
}

void Mailbox::answer(Message message) { end(std::move(message), nullptr); }

void Mailbox::refuse(std::exception_ptr error) { end({}, std::move(error)); }

void Mailbox::end(Message message, std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  TUTTI_CHECK(taken_ != nullptr, "there is no request to answer");
  taken_->answer = std::move(message);
  taken_->error = std::move(error);
  taken_->done = true;
  taken_ = nullptr;
  changed_.notify_all();
}

bool Mailbox::is_there(uint64_t caller) const {
  const std::lock_guard lock(mutex_);
  return callers_.contains(caller);
}

Message Mailbox::serve(const Caller& caller, const std::string& method, const Message& request) {
  std::unique_lock lock(mutex_);
  callers_.insert(caller.id);
  Waiting waiting{.request = {&caller, &method, &request}};
  waiting_.push_back(&waiting);
  changed_.notify_all();
  // A request that was taken is being read, so wait for its end even if the caller has gone.
  changed_.wait(lock, [&] { return waiting.done || (!waiting.taken && !callers_.contains(caller.id)); });
  if (!waiting.done) {
    std::erase(waiting_, &waiting);
    fail(ErrorKind::PeerLost, "the client has closed the connection");
  }
  if (waiting.error) std::rethrow_exception(waiting.error);
  return std::move(waiting.answer);
}

void Mailbox::gone(const Caller& caller) {
  const std::lock_guard lock(mutex_);
  callers_.erase(caller.id);
  changed_.notify_all();
}

}  // namespace tutti::rpc

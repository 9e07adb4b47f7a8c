#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "tutti/rpc/host.h"

namespace tutti::rpc {

// A service whose requests are taken by one thread of the program, one at a time, in the order of their
// arrival. Has to outlive its host. Thread-safe, except that next(), answer() and refuse() are for one
// thread.
class Mailbox final : public Service {
 public:
  struct Request {
    const Caller* caller;
    const std::string* method;
    const Message* message;
  };

  // Returns the next request; nullopt if none arrived within `timeout`. A request is valid until it is
  // answered or refused, which has to happen before the next call.
  std::optional<Request> next(std::chrono::milliseconds timeout);
  void answer(Message message);
  void refuse(std::exception_ptr error);

  // Returns true if a caller that has sent a request is still connected.
  bool is_there(uint64_t caller) const;

  Message serve(const Caller& caller, const std::string& method, const Message& request) override;
  void gone(const Caller& caller) override;

 private:
  struct Waiting {
    Request request;
    bool taken = false;
    bool done = false;
    Message answer = {};
    std::exception_ptr error = {};
  };

  void end(Message message, std::exception_ptr error);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Waiting*> waiting_;  // all below: guarded by mutex_
  Waiting* taken_ = nullptr;
  std::set<uint64_t> callers_;  // connected ones
};

}  // namespace tutti::rpc

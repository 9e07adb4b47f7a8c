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

namespace tutti::passive {

// A service whose requests are taken by one thread of the program, one at a time, in the order of their
// arrival. Has to outlive its host. Thread-safe, except that next(), answer() and refuse() are for one
// thread.
class Mailbox final : public rpc::Service {
 public:
  struct Request {
    const rpc::Caller* caller;
    const std::string* method;
    const rpc::Message* message;
  };

  // Returns the request that is to be answered or refused, the same one until then; nullopt if none arrived
  // within `timeout`.
  std::optional<Request> next(std::chrono::milliseconds timeout);
  void answer(rpc::Message message);
  void refuse(std::exception_ptr error);
  // Returns true if next() has returned a request that has not been answered.
  bool owes_answer() const;

  // Returns true if a caller that has sent a request is still connected.
  bool is_there(uint64_t caller) const;

  rpc::Message serve(const rpc::Caller& caller, const std::string& method,
                     const rpc::Message& request) override;
  void gone(const rpc::Caller& caller) override;

 private:
  struct Waiting {
    Request request;
    bool done = false;
    rpc::Message answer = {};
    std::exception_ptr error = {};
  };

  void end(rpc::Message message, std::exception_ptr error);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Waiting*> waiting_;  // all below: guarded by mutex_
  Waiting* taken_ = nullptr;      // not answered yet
  std::set<uint64_t> callers_;    // connected ones
};

}  // namespace tutti::passive

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

// A service whose requests are carried out by a thread that comes for them, one at a time, in the order in
// which they came. It is to be destroyed after its host. Thread-safe; next() and answer() are for one thread.
class Mailbox final : public Service {
 public:
  struct Letter {
    const Caller* caller;
    const std::string* method;
    const Message* request;
  };

  // The next request, which stays in memory until it is answered or refused, before the next is asked for.
  // Nothing if none came within so long.
  std::optional<Letter> next(std::chrono::milliseconds patience);
  void answer(Message message);
  void refuse(std::exception_ptr error);

  // Whether somebody who has asked for something is still connected.
  bool is_there(uint64_t caller) const;

  Message serve(const Caller& caller, const std::string& method, const Message& request) override;
  void gone(const Caller& caller) override;

 private:
  struct Waiting {
    Letter letter;
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
  std::set<uint64_t> callers_;  // those that are there
};

}  // namespace tutti::rpc

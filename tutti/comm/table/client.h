#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "tutti/base/file.h"
#include "tutti/comm/rendezvous.h"
#include "tutti/comm/table/protocol.h"

namespace tutti::comm::table {

enum class Greeting {
  Done,
  Silent,   // no answer in time
  Foreign,  // not such a table, or it closed the connection
  Refused,  // a table with another key
};

// Performs the handshake with the server; a client does this first on its connection.
Greeting greet(const FileDescriptor& socket, std::string_view purpose, const std::string& key,
               std::chrono::steady_clock::time_point deadline);

// A table at the other end of a connection. Only one call is in progress at a time. If the server does not
// answer, for example because it is stopped, a call fails after a few seconds; the next call tries again.
class Client final : public Rendezvous {
 public:
  // `socket` is a connection on which greet() has succeeded.
  Client(FileDescriptor socket, std::string address)
      : socket_(std::move(socket)), address_(std::move(address)) {}

  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  std::optional<std::string> peek(const std::string& key) override;
  std::string set_once(const std::string& key, const std::string& value) override;
  std::string hold(const std::string& key, const std::string& value) override;
  bool ended() const override { return ended_; }

 private:
  using Clock = std::chrono::steady_clock;

  Reply ask(const Request& request);
  Reply await_reply();
  bool exchange_bytes();
  [[noreturn]] void fail_gone() const;
  [[noreturn]] void fail_silent() const;

  const FileDescriptor socket_;
  const std::string address_;
  std::atomic<bool> ended_ = false;

  std::mutex mutex_;
  std::string unsent_;  // all below: guarded by mutex_
  std::string received_;
  bool owed_ = false;  // the server owes an answer to the request sent at asked_at_
  Clock::time_point asked_at_;
  bool gone_ = false;
};

}  // namespace tutti::comm::table

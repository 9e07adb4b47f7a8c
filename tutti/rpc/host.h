#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "tutti/net/credentials.h"
#include "tutti/net/stream.h"
#include "tutti/rpc/frame.h"
#include "tutti/rpc/message.h"

namespace tutti::rpc {

// One connection to a host.
struct Caller {
  uint64_t id;          // never reused
  Json hello;           // sent by the caller
  std::string address;  // for messages
  // True if the caller's arena is mapped here, so that pieces in it take no memory of this process.
  bool shares_memory = false;
};

// The methods that a host offers to its callers.
class Service {
 public:
  virtual ~Service() = default;
  // Runs in a thread of this caller, one request at a time; may block. An exception is sent to the caller.
  // The pieces of the answer are read before the caller's next request is served.
  virtual Message serve(const Caller& caller, const std::string& method, const Message& request) = 0;
  // Returns true if the pieces of this caller's requests of this method are to be passed as Message::incoming
  // where the network brings them, so that serve() can use the first ones while the next are on their way.
  // Pieces that serve() leaves are received and dropped; after an exception, the connection is closed if that
  // is much.
  virtual bool takes_incoming(const Caller& /*caller*/, const std::string& /*method*/) const { return false; }
  // Called when the connection has ended or the host is closing, so that no more requests come from it. Runs
  // in another thread, possibly while serve() runs for this caller; serve() should then return, or throw if
  // it has no answer. Called repeatedly until serve() has returned, and once more afterwards, because a
  // serve() that was just about to begin may have missed the first call.
  virtual void gone(const Caller& caller) = 0;
  // Returns true if this caller's connection is to be handed to take_connection(), in place of being served.
  virtual bool takes_connection(const Caller& /*caller*/) const { return false; }
  virtual void take_connection(const Caller& /*caller*/, std::unique_ptr<net::Stream> /*stream*/) {}
};

struct HostOptions {
  // HOST:PORT to listen on; port 0 chooses a free one. Any address but loopback requires a
  // secret or an authority, or `insecure`.
  std::string address = "127.0.0.1:0";
  net::Credentials credentials = {};
  bool insecure = false;
  // The maximum memory of all pending requests together, and once more of the pieces that a service takes as
  // they arrive. A request that does not fit now waits for room; one that can never fit is refused.
  size_t memory = size_t{16} << 30;
  // A caller of which nothing was heard for so long is lost: its machine has vanished, or its process is
  // stopped. A caller that lives is heard once a second. At least nine seconds.
  std::chrono::milliseconds silence = net::kSilence;
  // Called from any thread with a line for the log when a caller is refused.
  std::function<void(const std::string& text)> report = {};
  // The purpose of the connections. Callers with another purpose are refused, and a proof of the secret is
  // valid for one purpose only.
  std::string purpose = kCalls;
  // The maximum number of connections that have not completed the handshake. A new one then replaces the
  // oldest: legitimate callers complete it at once, so that candidates cannot keep others out.
  size_t most_candidates = 128;
  // How long the destructor waits for the callers to leave by themselves.
  std::chrono::milliseconds farewell{0};
};

// The callers that a host has refused, for errors about a task that has not come, which may be one of them.
// Thread-safe.
class RefusedCallers {
 public:
  void note(const std::string& text);
  // Returns " (callers that this task has refused: ...)", or "" if there are none.
  std::string text() const;

 private:
  mutable std::mutex mutex_;
  std::string last_;  // both: guarded by mutex_
  int64_t number_ = 0;
};

// Listens for connections and serves each in a thread of its own. The service must outlive the host.
// Thread-safe.
class Host {
 public:
  // Throws Overloaded if the port is in use; the error names the process that uses it if that is known.
  Host(const HostOptions& options, Service& service);
  // Refuses new requests, tells the service that every caller is gone, and waits for pending requests.
  // Callers still receive the answers that the service has finished, and hear that the host has closed.
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  int port() const;
  // Admits no more callers. Returns once the port is free; those who are connected stay.
  void stop_listening();

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tutti::rpc

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "tutti/rpc/credentials.h"
#include "tutti/rpc/message.h"

namespace tutti::rpc {

// One connection to a host.
struct Caller {
  uint64_t id;          // not used twice
  Json hello;           // as the caller said it
  std::string address;  // where it comes from
};

// What a host does for its callers.
class Service {
 public:
  virtual ~Service() = default;
  // In a thread of this caller's own, one request at a time; it may wait. What it throws reaches the caller
  // as it is. The answer's pieces are read before the next request of this caller is served.
  virtual Message serve(const Caller& caller, const std::string& method, const Message& request) = 0;
  // The connection has ended, or the host is about to: nothing more comes from it. In another thread, maybe
  // while serve() is still at work for it, which should then come to an end, by an exception where it has no
  // answer. Said again and again until it has, and once more then: a serve() that was only about to begin may
  // not have noticed.
  virtual void gone(const Caller& caller) = 0;
};

struct HostOptions {
  // HOST:PORT to listen on; port 0: any. An address other than this machine's loopback needs TLS or
  // `insecure`.
  std::string address = "127.0.0.1:0";
  Credentials credentials = {};
  bool insecure = false;
  // The most that requests under way may take, from all callers together; a request that is larger waits
  // until there is room, one that can never fit is refused.
  size_t memory = size_t{16} << 30;
  // Told of callers that were refused, and why: one line, for a log. From any thread.
  std::function<void(const std::string& text)> report = {};
};

// Listens, and carries out what callers ask, each in a thread of its own. The service outlives it.
// Thread-safe.
class Host {
 public:
  // Port in use: Overloaded, which names who has it, where that can be found out.
  Host(const HostOptions& options, Service& service);
  // Refuses new requests, tells the service that every caller is gone, and waits for what is under way. What
  // the service has done by then its callers still hear of.
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  int port() const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tutti::rpc

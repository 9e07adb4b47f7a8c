#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/net/credentials.h"
#include "tutti/rpc/arena.h"
#include "tutti/rpc/message.h"

namespace tutti::rpc {

struct ChannelOptions {
  net::Credentials credentials = {};
  // Identifies the caller to the service; sent at the start of every connection.
  Json hello = Json::object();
  // For error messages: "ps/1 (h:2222)".
  std::string who = {};
  // Memory that a server on the same machine can map: pieces in it are not sent, but referred to. May be
  // null.
  std::shared_ptr<Arena> arena = {};
  // The maximum memory of an answer without `into`.
  size_t memory = size_t{16} << 30;
};

struct CallOptions {
  std::chrono::milliseconds timeout{60000};
  // Destinations for the pieces of the answer, which must have the same number and sizes; saves an
  // allocation. The other end writes directly into destinations in the arena.
  std::vector<std::span<std::byte>> into = {};
  // Called ten times a second while the call waits; if it returns true, the call ends with a Timeout.
  // Empty: never gives up.
  std::function<bool()> give_up = {};
  // For error messages: the purpose of the call, and its step.
  const char* what = "";
  int64_t step = -1;
};

// A connection to one server, opened at the first use and again after it was lost. Thread-compatible: only
// one call at a time (else a Bug). For concurrent calls, use several channels.
class Channel {
 public:
  // HOST:PORT. Does not connect yet. Ignores proxies from the environment.
  Channel(const std::string& address, const ChannelOptions& options = {});
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Waits until the server can be reached. A Timeout contains the last obstacle, such as a refused connection
  // or an unknown host. Throws InvalidArgument at once if waiting cannot help, as with another version or
  // secret.
  void connect(std::chrono::milliseconds timeout);
  // Returns true if the last use of the channel left an open connection.
  bool is_connected() const;

  // Sends the request and waits for the answer. Rethrows an Error of the service. Throws PeerLost if
  // the connection ends; whether the request was carried out is then unknown. The next call connects
  // again.
  Message call(const std::string& method, const Message& request, const CallOptions& options = {});

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tutti::rpc

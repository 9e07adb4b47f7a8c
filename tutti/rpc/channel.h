#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/rpc/arena.h"
#include "tutti/rpc/credentials.h"
#include "tutti/rpc/message.h"

namespace tutti::rpc {

struct ChannelOptions {
  Credentials credentials = {};
  // Who calls, for the service: every connection begins with it.
  Json hello = Json::object();
  // For error messages: "ps/1 (h:2222)".
  std::string who = {};
  // Where the other end is on this machine: what lies in it is named, not sent. May be null.
  std::shared_ptr<Arena> arena = {};
  // The most that an answer may take for which no place is given.
  size_t memory = size_t{16} << 30;
};

struct CallOptions {
  // Where the other end is stopped in the middle of a long request, the error comes up to 10 s later: until
  // the connection is given up, the network library holds on to the bytes of the request.
  std::chrono::milliseconds timeout{60000};
  // Where the pieces of the answer go, as many and as long as these: nothing has to be taken from the heap.
  // In the arena, the other end writes them there itself.
  std::vector<std::span<std::byte>> into = {};
  // Asked ten times a second while nothing comes: whether the answer is not wanted any more, which is a
  // Timeout then. Empty: it is.
  std::function<bool()> give_up = {};
  // For error messages: what is asked for, and in which step.
  const char* what = "";
  int64_t step = -1;
};

// A connection to one server, made when it is first needed, and again when it was lost. Thread-compatible:
// one call at a time (else a Bug); who needs several at once has several channels.
class Channel {
 public:
  // HOST:PORT; nothing is connected yet. Proxies of the environment are not used.
  Channel(const std::string& address, const ChannelOptions& options = {});
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Waits until the server is there. What was in the way is in the text of the Timeout: refused, no such
  // host, another version, another secret. What waiting does not mend is an InvalidArgument at once.
  void connect(std::chrono::milliseconds timeout);
  // Whether the last call, if there was any, has left a connection behind.
  bool is_connected() const;

  // Sends the request and waits for the answer. An Error of the service comes back as it was thrown there. A
  // connection that ends is a PeerLost: whether the request was carried out is not known then. The next call
  // connects again.
  Message call(const std::string& method, const Message& request, const CallOptions& options = {});

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tutti::rpc

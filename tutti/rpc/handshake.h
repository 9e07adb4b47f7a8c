#pragma once

#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "tutti/base/json.h"
#include "tutti/rpc/arena.h"
#include "tutti/rpc/mapping.h"
#include "tutti/rpc/wire.h"

// The handshake of a new stream. First, each end sends a line with its version. Three frames follow, as
// tutti/base/secret.h says. What the caller says first is its hello and the name of its arena, in JSON.
namespace tutti::rpc {

// Sends this end's version and receives the other's. Throws InvalidArgument if they are not compatible, or if
// the other end is another program. The line is the same in all versions, so that each end can name both.
void exchange_versions(Stream& stream, const TimeLimits& time);

// Sends a caller whose connection cannot be served this end's version and the reason. Does not block.
void turn_away(Stream& stream, const Error& why);

// The caller's side, without the versions. Returns true if the host can map the arena, which may be null.
bool greet_host(Wire& wire, const std::string& secret, const Json& hello, const Arena* arena,
                const TimeLimits& time);

struct Greeting {
  Json hello;
  std::shared_ptr<const Mapping>
      arena;  // the caller's arena; null if it has none, or if this process cannot map it
};

// The host's side, without the versions. Throws InvalidArgument if the caller has another secret.
Greeting greet_caller(Wire& wire, const std::string& secret, const TimeLimits& time);

}  // namespace tutti::rpc

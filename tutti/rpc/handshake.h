#pragma once

#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "tutti/base/json.h"
#include "tutti/rpc/arena.h"
#include "tutti/rpc/mapping.h"
#include "tutti/rpc/wire.h"

// The handshake of a new stream, in three frames: the host sends a nonce; the caller sends another one and
// proves with both that it knows the secret; the host does the same. The secret itself is never sent. Without
// TLS, this keeps out peers that do not know the secret, but not attackers who can read and change the
// traffic.
namespace tutti::rpc {

// The caller's side. Returns true if the host can map the arena, which may be null.
bool greet_host(Wire& wire, const std::string& secret, const Json& hello, const Arena* arena,
                const TimeLimits& time);

struct Greeting {
  Json hello;
  std::shared_ptr<const Mapping>
      arena;  // the caller's arena; null if it has none, or if this process cannot map it
};

// The host's side. Throws InvalidArgument if the caller has another secret.
Greeting greet_caller(Wire& wire, const std::string& secret, const TimeLimits& time);

}  // namespace tutti::rpc

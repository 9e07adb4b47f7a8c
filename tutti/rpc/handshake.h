#pragma once

#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "tutti/base/json.h"
#include "tutti/rpc/arena.h"
#include "tutti/rpc/mapping.h"
#include "tutti/rpc/wire.h"

// How two ends of a new stream get to know each other, in three frames: the host draws a nonce; the caller
// draws another, and proves with both that it knows the secret; the host does the same. The secret itself is
// never sent. Without TLS this keeps out who does not know it, not who can read and change what is sent.
namespace tutti::rpc {

// The caller's end; whether the host sees the arena, which may be null.
bool greet_host(Wire& wire, const std::string& secret, const Json& hello, const Arena* arena,
                const Patience& patience);

struct Greeting {
  Json hello;
  std::shared_ptr<const Mapping>
      arena;  // of the caller; null where it has none, or it cannot be seen from here
};

// The host's end. InvalidArgument where the caller has another secret.
Greeting greet_caller(Wire& wire, const std::string& secret, const Patience& patience);

}  // namespace tutti::rpc

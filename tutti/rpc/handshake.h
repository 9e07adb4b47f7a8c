#pragma once

#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "tutti/base/json.h"
#include "tutti/rpc/arena.h"
#include "tutti/rpc/mapping.h"
#include "tutti/rpc/wire.h"

// The handshake of a new stream, in three frames, as tutti/base/secret.h says. What the caller says first is
// its hello and the name of its arena, in JSON.
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

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "tutti/base/json.h"
#include "tutti/net/credentials.h"
#include "tutti/rpc/arena.h"
#include "tutti/rpc/frame.h"
#include "tutti/rpc/wire.h"

// The handshake of every new connection between tasks, for calls, for the board of the ranks and for sums.
// First, each end sends a line with its version, its purpose, and whether it wants checksums. Three frames
// follow, as tutti/base/secret.h says. What the caller says first is its hello and the name of its arena, in
// JSON.
namespace tutti::rpc {

// Sends this end's version and purpose (HostOptions) and receives the other's. Throws InvalidArgument if the
// versions are not compatible, or if the other end is another program; and a StreamEnd if it has another
// purpose: at this address, another task may listen later. The line begins in the same way in all versions,
// so that each end can name both. From then on, messages have checksums if an end wants them; throws a
// StreamEnd if the other end refuses them.
void exchange_versions(Stream& stream, const TimeLimits& time, std::string_view purpose = kCalls,
                       net::Checksums checksums = net::Checksums::BetweenHosts);

// Sends a caller whose connection cannot be served this end's version and the reason. Does not block.
void turn_away(Stream& stream, const Error& why, std::string_view purpose);

// The caller's side, without the versions. Returns true if the host can map the arena, which may be null.
bool greet_host(Wire& wire, const std::string& secret, const Json& hello, const Arena* arena,
                const TimeLimits& time, std::string_view purpose = kCalls);

struct Greeting {
  Json hello;
  std::shared_ptr<const Mapping>
      arena;  // the caller's arena; null if it has none, or if this process cannot map it
};

// The host's side, without the versions. Calls `admit` before the caller is told that it is welcome. Throws
// InvalidArgument if the caller has another secret.
Greeting greet_caller(Wire& wire, const std::string& secret, const TimeLimits& time,
                      std::string_view purpose = kCalls,
                      const std::function<void(const Greeting&)>& admit = {});

}  // namespace tutti::rpc

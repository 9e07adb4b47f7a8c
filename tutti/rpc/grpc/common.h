#pragma once

#include <chrono>
#include <span>

#include "tutti/base/error.h"
#include "tutti/rpc/stream.h"

namespace grpc {
class Status;
}

// What both ends of a connection have in common.
namespace tutti::rpc {

inline constexpr const char* kMethod = "/tutti.Rpc/Talk";
// The caller's version and protocol stand beside the call, so that the server can name them whatever has
// become of what is said in it.
inline constexpr const char* kVersionKey = "tutti-version";
inline constexpr const char* kProtocolKey = "tutti-protocol";

// How long a status may still take: one that the other end has already sent, or why a caller is refused.
inline constexpr std::chrono::seconds kLastWords{5};

// One of gRPC's settings.
struct Setting {
  const char* name;
  int value;
};
std::span<const Setting> common_settings();

// gRPC writes its own lines to stderr, mostly about what is an error to somebody here anyway. Of these only
// those of TLS are left, which a server has no other way to tell of; all of them where GRPC_VERBOSITY asks
// for more than errors. Needs something of gRPC to be there.
void tame_log();

// An error as a server ends a call with it, and what a call has ended with. Nowhere else is a status looked
// at.
grpc::Status status_of(const Error& error);
StreamEnd end_of(const grpc::Status& status);

}  // namespace tutti::rpc

#pragma once

#include <chrono>
#include <span>

#include "tutti/base/error.h"
#include "tutti/rpc/stream.h"

namespace grpc {
class Status;
}

// Definitions for both ends of a connection.
namespace tutti::rpc {

inline constexpr const char* kMethod = "/tutti.Rpc/Talk";
// The caller's version and protocol are sent as metadata of the call, so that the server can name them even
// if the messages themselves have become incompatible.
inline constexpr const char* kVersionKey = "tutti-version";
inline constexpr const char* kProtocolKey = "tutti-protocol";

// How long to wait for a status that the other end has already sent, or for sending the reason of a refusal.
inline constexpr std::chrono::seconds kLastWords{5};

// The interval of keepalive pings, and the timeout of the answer. Without an answer, the other end's machine
// has vanished or its process is stopped.
inline constexpr int kPingMs = 10000;

// One of gRPC's settings.
struct Setting {
  const char* name;
  int value;
};
std::span<const Setting> common_settings();

// Starts gRPC until the process ends. To be called before any object of gRPC is made. Throws Overloaded if
// the system cannot start the threads that gRPC needs: gRPC itself would abort or, as soon as its last object
// is destroyed, wait forever for a thread that could not be started.
void start_grpc();

// gRPC logs to stderr, mostly what is also an error elsewhere. Keeps only its lines about TLS, which a server
// cannot learn in another way, or all lines if GRPC_VERBOSITY asks for more than errors. gRPC has to be
// initialised.
void tame_log();

// Convert an error to the status with which a server ends a call, and the status of an ended call to an
// error. No other code looks at a status.
grpc::Status status_of(const Error& error);
StreamEnd end_of(const grpc::Status& status);

}  // namespace tutti::rpc

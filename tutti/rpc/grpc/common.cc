#include "tutti/rpc/grpc/common.h"

#include <array>
#include <grpc/grpc.h>
#include <grpc/impl/codegen/grpc_types.h>
#include <grpc/support/log.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/status.h>
#include <memory>
#include <string_view>

#include "tutti/base/log.h"
#include "tutti/base/start_thread.h"

namespace tutti::rpc {
namespace {

constexpr std::array kKinds = {
    ErrorKind::InvalidArgument, ErrorKind::PeerLost,      ErrorKind::Timeout, ErrorKind::DataLoss,
    ErrorKind::Overloaded,      ErrorKind::Unimplemented, ErrorKind::Bug};

// The status travels in HTTP/2 headers, which are limited to 8 KiB.
constexpr size_t kLongestText = 2000;

// The largest chunk and the overhead of a message.
constexpr int kLargestMessage = static_cast<int>(kLargestChunk) + 4096;

constexpr int kLookahead = 8 * static_cast<int>(kLargestChunk);

// Maps the status codes of gRPC itself.
ErrorKind kind_of(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return ErrorKind::Timeout;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return ErrorKind::DataLoss;
    case grpc::StatusCode::UNIMPLEMENTED:
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED:
      return ErrorKind::InvalidArgument;
    default:
      return ErrorKind::PeerLost;
  }
}

std::string text_of(const grpc::Status& status) {
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED)
    return "a gRPC server answers at this address, but not one of Tutti. Check the address";
  const std::string& text = status.error_message();
  return text.empty() ? "the connection has ended" : text;
}

void log_tls_alone(gpr_log_func_args* args) {
  if (!std::string_view(args->file).ends_with("ssl_transport_security.cc")) return;
  const std::string_view text = args->message;
  // OpenSSL's codes come before the text, if there are any.
  const size_t codes = text.rfind("::");
  Log(LogLevel::Warning)
      .warning("TLS with another task failed: {}",
               text.substr(codes == std::string_view::npos ? 0 : codes + 2));
}

}  // namespace

void tame_log() {
  [[maybe_unused]] static const bool kOnce = [] {
    if (gpr_should_log(GPR_LOG_SEVERITY_INFO) == 0) gpr_set_log_function(log_tls_alone);
    return true;
  }();
}

void start_grpc() {
  struct Grpc {
    Grpc() {
      // Two timers, a timer manager, two executors, two of the event engine, and those of a first connection.
      constexpr int kThreads = 10;
      require_threads(kThreads, "the threads of gRPC");
      grpc_init();
      never_connected = grpc::CreateChannel("ipv4:127.0.0.1:1", grpc::InsecureChannelCredentials());
    }
    ~Grpc() {
      never_connected.reset();
      grpc_shutdown();
    }
    // Keeps the threads of the event engine running. It would end them with the last channel, and then wait
    // for ever for one that could not be started.
    std::shared_ptr<grpc::Channel> never_connected;
  };
  static const Grpc kGrpc;
}

std::span<const Setting> common_settings() {
  static constexpr std::array kSettings = {
      // Detects a machine that has vanished, also while no call is pending. Each end sets how soon.
      Setting{GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1},
      Setting{GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0},
      Setting{GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kPingMs / 2},
      Setting{GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0},
      // The bytes of a stream that gRPC receives before anybody reads them. Its own estimate grows to more
      // than
      // a hundred megabytes for each stream if many send at once and are read slowly.
      Setting{GRPC_ARG_HTTP2_BDP_PROBE, 0},
      Setting{GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kLookahead},
      // Wire cuts messages into chunks, so that no larger ones come.
      Setting{GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, kLargestMessage},
      Setting{GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, -1},
  };
  return kSettings;
}

grpc::Status status_of(const Error& error) {
  return {grpc::StatusCode::ABORTED, std::string(error.what()).substr(0, kLongestText),
          std::string(to_string(error.kind()))};
}

StreamEnd end_of(const grpc::Status& status) {
  for (const ErrorKind kind : kKinds) {
    if (status.error_details() == to_string(kind))
      return {kind, status.error_message(), StreamEnd::Said::ByIt};
  }
  return {kind_of(status.error_code()), text_of(status)};
}

}  // namespace tutti::rpc

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/file.h"
#include "tutti/base/random_key.h"
#include "tutti/base/version.h"
#include "tutti/rpc/frame.h"
#include "tutti/rpc/grpc/acceptor.h"
#include "tutti/rpc/grpc/common.h"
#include "tutti/rpc/grpc/pump.h"
#include "tutti/rpc/listening.h"
#include "tutti/rpc/stream.h"

namespace tutti::rpc {
namespace {

using std::chrono::milliseconds;

// A caller uses one stream per connection.
constexpr int kStreamsOfAConnection = 16;
constexpr int kHandshakeMs = 10000;
// A connection without a stream is closed.
constexpr int kIdleMs = 10000;

void drain(grpc::CompletionQueue& queue) {
  queue.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue.Next(&tag, &ok)) {
  }
}

// The objects that gRPC needs to accept a call, and then to serve it.
struct Call {
  grpc::CompletionQueue queue;
  grpc::GenericServerContext context;
  grpc::GenericServerAsyncReaderWriter stream{&context};
  CompletionTag done;

  ~Call() { drain(queue); }
};

class GrpcServerStream final : public ServerStream, private Pump::Hooks {
 public:
  explicit GrpcServerStream(std::unique_ptr<Call> call) : call_(std::move(call)), pump_(call_->queue, *this) {
    pump_.read_on();
  }
  ~GrpcServerStream() override {
    call_->context.TryCancel();
    pump_.await(call_->done, Clock::time_point::max());
    pump_.await(finishing_, Clock::time_point::max());
    pump_.drain();
    // Drops the bytes leased to the call that have not been sent.
    call_.reset();
    pump_.await_leases();
  }
  GrpcServerStream(const GrpcServerStream&) = delete;
  GrpcServerStream& operator=(const GrpcServerStream&) = delete;

  bool await_room(Clock::time_point deadline) override { return pump_.await_room(deadline); }
  void write(std::span<const ConstBytes> parts, Clock::time_point deadline) override {
    check_caller();
    pump_.write(parts, deadline);
  }
  void flush(Clock::time_point deadline) override { pump_.flush(deadline); }
  Chunk read(Clock::time_point deadline) override { return pump_.read(deadline); }
  bool ended() override { return pump_.ended() || !call_->done.pending; }
  std::string address() const override;
  void hang_up() override { call_->context.TryCancel(); }
  void refuse(const Error& why) override {
    call_->stream.Finish(status_of(why), finishing_.start());
    pump_.await(finishing_, Clock::now() + kLastWords);
  }

 private:
  void start_read(grpc::ByteBuffer& into, void* tag) override { call_->stream.Read(&into, tag); }
  void start_write(const grpc::ByteBuffer& bytes, void* tag) override { call_->stream.Write(bytes, tag); }
  [[noreturn]] void fail_ended() override {
    throw StreamEnd(ErrorKind::PeerLost, "the client has closed the connection");
  }
  void check_caller();
  std::string said(const char* key) const;

  std::unique_ptr<Call> call_;
  Pump pump_;
  CompletionTag finishing_;
  bool checked_ = false;
};

// gRPC returns "ipv4:127.0.0.1:4711", and escapes the colons of IPv6 addresses.
std::string GrpcServerStream::address() const {
  const std::string peer = call_->context.peer();
  return peer.substr(peer.find(':') + 1);
}

std::string GrpcServerStream::said(const char* key) const {
  const auto& metadata = call_->context.client_metadata();
  const auto found = metadata.find(key);
  return found == metadata.end() ? "" : std::string(found->second.data(), found->second.size());
}

// Runs before the first write to the caller.
void GrpcServerStream::check_caller() {
  if (std::exchange(checked_, true)) return;
  if (call_->context.method() != kMethod || said(kProtocolKey).empty())
    fail(ErrorKind::InvalidArgument, "this is a server of Tutti, but the client is another program");
  if (said(kProtocolKey) != std::to_string(kProtocol))
    fail(ErrorKind::InvalidArgument,
         "Tutti {} of the client (protocol {}) and Tutti {} of the server (protocol {}) are not compatible: "
         "run the same version everywhere",
         said(kVersionKey), said(kProtocolKey), version(), kProtocol);
}

std::shared_ptr<grpc::ServerCredentials> server_credentials(const Credentials& credentials) {
  if (credentials.certificate.empty()) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions options(credentials.authority.empty()
                                                ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                                : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = credentials.authority;
  options.pem_key_cert_pairs.push_back({credentials.key, credentials.certificate});
  return grpc::SslServerCredentials(options);
}

[[noreturn]] void fail_to_listen(const std::string& address) {
  const Address place = parse_address(address);
  const int error = why_not_listen(place);
  if (error == EADDRINUSE)
    fail(ErrorKind::Overloaded,
         "port {} is in use{}: choose another one (0 selects a free port), or end that process", place.port,
         user_of_port(place.port));
  if (error != 0) fail_errno(error, "listening at " + address);
  fail(ErrorKind::Overloaded, "port {} was in use a moment ago: try again", place.port);
}

// With external connections, gRPC does not report that certificate and key do not match, but every handshake
// would fail. Therefore starts a server that listens on a name that nobody knows, and ends it at once.
void require_good_certificate(const Credentials& credentials) {
  if (credentials.certificate.empty()) return;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix-abstract:tutti-" + random_key(), server_credentials(credentials), &port);
  const auto queue = builder.AddCompletionQueue();
  const auto server = builder.BuildAndStart();
  const bool is_good = server != nullptr && port != 0;
  if (server != nullptr) server->Shutdown();
  drain(*queue);
  if (!is_good)
    fail(ErrorKind::InvalidArgument,
         "TLS cannot use this certificate and key: check that --tls-key is the key of --tls-cert");
}

class GrpcListener final : public Listener {
 public:
  GrpcListener(const std::string& address, const Credentials& credentials, milliseconds silence);
  ~GrpcListener() override;
  GrpcListener(const GrpcListener&) = delete;
  GrpcListener& operator=(const GrpcListener&) = delete;

  int port() const override { return acceptor_->port(); }
  std::unique_ptr<ServerStream> accept(milliseconds timeout) override;
  void close() override;

 private:
  void request();
  void shut_down();

  grpc::AsyncGenericService service_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> taker_;
  std::unique_ptr<Call> next_;  // the next call, requested from gRPC
  std::optional<Acceptor> acceptor_;
};

GrpcListener::GrpcListener(const std::string& address, const Credentials& credentials, milliseconds silence) {
  // gRPC does not report a connection that it cannot accept.
  constexpr int kDescriptors = 48;
  start_grpc();
  require_descriptors(kDescriptors, "serving at " + address);
  grpc::ServerBuilder builder;
  tame_log();
  require_good_certificate(credentials);
  for (const Setting& setting : common_settings()) builder.AddChannelArgument(setting.name, setting.value);
  // A process in which no thread uses gRPC looks for pings every five seconds.
  constexpr milliseconds kForAnAnswer{8000};
  const milliseconds pause = std::max(silence - kForAnAnswer, milliseconds(1000));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(pause.count()));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, static_cast<int>(kForAnAnswer.count()));
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsOfAConnection);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleMs);
  using Type = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  taker_ =
      builder.experimental().AddExternalConnectionAcceptor(Type::FROM_FD, server_credentials(credentials));
  builder.RegisterAsyncGenericService(&service_);
  queue_ = builder.AddCompletionQueue();
  server_ = builder.BuildAndStart();
  if (server_ == nullptr)
    fail(ErrorKind::Overloaded, "gRPC cannot listen at {}, and gives no reason", address);
  request();
  try {
    acceptor_.emplace(parse_address(address), [this](int connected, int listener) {
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
      connection.fd = connected;
      connection.listener_fd = listener;
      taker_->HandleNewConnection(&connection);
    });
  } catch (const Error&) {
    shut_down();
    fail_to_listen(address);
  }
}

void GrpcListener::request() {
  next_ = std::make_unique<Call>();
  next_->context.AsyncNotifyWhenDone(next_->done.start());
  service_.RequestCall(&next_->context, &next_->stream, &next_->queue, queue_.get(), next_.get());
}

std::unique_ptr<ServerStream> GrpcListener::accept(milliseconds timeout) {
  void* tag = nullptr;
  bool ok = false;
  const auto deadline = std::chrono::system_clock::now() + timeout;
  if (queue_->AsyncNext(&tag, &ok, deadline) != grpc::CompletionQueue::GOT_EVENT || !ok) return nullptr;
  auto stream = std::make_unique<GrpcServerStream>(std::move(next_));
  request();
  return stream;
}

void GrpcListener::close() {
  acceptor_.reset();
  server_->Shutdown(std::chrono::system_clock::now());
}

GrpcListener::~GrpcListener() { shut_down(); }

void GrpcListener::shut_down() {
  close();
  drain(*queue_);
}

}  // namespace

std::unique_ptr<Listener> listen(const std::string& address, const Credentials& credentials,
                                 milliseconds silence) {
  return std::make_unique<GrpcListener>(address, credentials, silence);
}

}  // namespace tutti::rpc

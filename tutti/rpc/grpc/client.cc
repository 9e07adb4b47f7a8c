#include <algorithm>
#include <chrono>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/version.h"
#include "tutti/rpc/frame.h"
#include "tutti/rpc/grpc/common.h"
#include "tutti/rpc/grpc/pump.h"
#include "tutti/rpc/listening.h"
#include "tutti/rpc/stream.h"

namespace tutti::rpc {
namespace {

std::shared_ptr<grpc::ChannelCredentials> channel_credentials(const Credentials& credentials) {
  if (credentials.authority.empty()) return grpc::InsecureChannelCredentials();
  return grpc::SslCredentials({credentials.authority, credentials.key, credentials.certificate});
}

std::shared_ptr<grpc::Channel> make_channel(const std::string& address, const Credentials& credentials) {
  grpc::ChannelArguments arguments;
  for (const Setting& setting : common_settings()) arguments.SetInt(setting.name, setting.value);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingMs);
  // Proxies are not for the tasks of a cluster.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Uses a connection that is not shared with other channels, so that it closes with this one.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  return grpc::CreateCustomChannel("dns:///" + address, channel_credentials(credentials), arguments);
}

class ClientStream final : public Stream, private Pump::Hooks {
 public:
  ClientStream(const std::string& address, const Credentials& credentials, Clock::time_point deadline);
  ~ClientStream() override;
  ClientStream(const ClientStream&) = delete;
  ClientStream& operator=(const ClientStream&) = delete;

  bool await_room(Clock::time_point deadline) override { return pump_.await_room(deadline); }
  void write(std::span<const ConstBytes> parts, Clock::time_point deadline) override {
    pump_.write(parts, deadline);
  }
  void flush(Clock::time_point deadline) override { pump_.flush(deadline); }
  Chunk read(Clock::time_point deadline) override { return pump_.read(deadline); }
  bool ended() override { return pump_.ended(); }

 private:
  void start_read(grpc::ByteBuffer& into, void* tag) override { call_->Read(&into, tag); }
  void start_write(const grpc::ByteBuffer& bytes, void* tag) override { call_->Write(bytes, tag); }
  [[noreturn]] void fail_ended() override;
  void release();

  grpc::CompletionQueue queue_;
  Pump pump_;
  CompletionTag starting_;
  CompletionTag finishing_;
  bool finished_ = false;
  grpc::Status status_;
  std::optional<grpc::ClientContext> context_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<grpc::GenericStub> stub_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

ClientStream::ClientStream(const std::string& address, const Credentials& credentials,
                           Clock::time_point deadline)
    : pump_(queue_, *this),
      channel_(make_channel(address, credentials)),
      stub_(std::make_unique<grpc::GenericStub>(channel_)) {
  tame_log();
  context_.emplace();
  context_->AddMetadata(kVersionKey, std::string(version()));
  context_->AddMetadata(kProtocolKey, std::to_string(kProtocol));
  call_ = stub_->PrepareCall(&*context_, kMethod, &queue_);
  call_->StartCall(starting_.start());
  try {
    if (!pump_.await(starting_, deadline)) throw StreamEnd(ErrorKind::PeerLost, kNothingAnswers);
    pump_.read_on();
    if (!starting_.ok) fail_ended();
  } catch (const Error&) {
    release();
    throw;
  }
}

ClientStream::~ClientStream() { release(); }

void ClientStream::release() {
  context_->TryCancel();
  pump_.await(starting_, Clock::time_point::max());
  pump_.drain();
  pump_.await(finishing_, Clock::time_point::max());
  call_.reset();
  context_.reset();
  stub_.reset();
  // Closes the connection and drops what has not been sent.
  channel_.reset();
  pump_.await_leases();
  queue_.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
  }
}

void ClientStream::fail_ended() {
  if (!std::exchange(finished_, true)) call_->Finish(&status_, finishing_.start());
  if (!pump_.await(finishing_, Clock::now() + kLastWords))
    throw StreamEnd(ErrorKind::PeerLost, "the connection has ended");
  throw end_of(status_);
}

bool has(const std::string& text, std::initializer_list<std::string_view> any) {
  return std::any_of(any.begin(), any.end(),
                     [&](std::string_view part) { return text.find(part) != std::string::npos; });
}

// Recognizes errors in gRPC's texts that no retry can fix, and explains them; "" for all others.
std::string mistake(const std::string& said) {
  if (has(said, {"WRONG_VERSION_NUMBER", "wrong version number"}))
    return "it does not use TLS, but this task does (--tls-ca). Give all tasks the same --tls-* flags";
  if (has(said, {"CERTIFICATE_VERIFY_FAILED", "certificate verify failed"}))
    return "its certificate was not issued by the authority in --tls-ca, or is not valid at this time";
  if (has(said, {"Hostname Verification Check failed", "is not in peer certificate"}))
    return "its certificate was issued for another host name";
  if (has(said, {"http1.x"})) return "an HTTP/1 server answers at this address, not a server of Tutti";
  return "";
}

}  // namespace

std::unique_ptr<Stream> open_stream(const std::string& address, const Credentials& credentials,
                                    Clock::time_point deadline) {
  start_grpc();
  try {
    return std::make_unique<ClientStream>(address, credentials, deadline);
  } catch (const StreamEnd& end) {
    const std::string wrong = end.told() ? "" : mistake(end.what());
    if (wrong.empty()) throw;
    throw StreamEnd(ErrorKind::InvalidArgument, wrong);
  }
}

}  // namespace tutti::rpc

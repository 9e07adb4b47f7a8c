#include "bench/peers/grpc_stream.h"

#include <cstring>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <utility>
#include <vector>

#include "tutti/base/error.h"

namespace bench {
namespace {

// Copies a received message into one piece of memory, as a tensor needs it.
void copy(const grpc::ByteBuffer& message, std::vector<char>& to) {
  std::vector<grpc::Slice> slices;
  if (!message.Dump(&slices).ok()) tutti::fail(tutti::ErrorKind::DataLoss, "gRPC cannot read a message");
  size_t done = 0;
  for (const grpc::Slice& part : slices) {
    std::memcpy(to.data() + done, part.begin(), part.size());
    done += part.size();
  }
}

// Answers every message with one of equal size from static memory.
class RawService final : public grpc::CallbackGenericService {
 public:
  explicit RawService(bool copies) : copies_(copies) {}

 private:
  struct Reactor final : public grpc::ServerGenericBidiReactor {
    Reactor(const std::vector<char>& memory, bool copies) : out(make(memory)), received(copies ? kLarge : 0) {
      StartRead(&in);
    }
    static grpc::ByteBuffer make(const std::vector<char>& memory) {
      const grpc::Slice slice(memory.data(), memory.size(), grpc::Slice::STATIC_SLICE);
      return {&slice, 1};
    }
    void OnReadDone(bool ok) override {
      if (!ok) return Finish(grpc::Status::OK);
      if (!received.empty()) copy(in, received);
      StartWrite(&out);
    }
    void OnWriteDone(bool) override { StartRead(&in); }
    void OnDone() override { delete this; }
    grpc::ByteBuffer in;
    grpc::ByteBuffer out;
    std::vector<char> received;
  };
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new Reactor(memory_, copies_);
  }
  const bool copies_;
  const std::vector<char> memory_ = std::vector<char>(kLarge, 1);
};

}  // namespace

bool has_grpc() { return true; }

void serve_grpc(bool copies, const TlsTexts& tls, const std::function<void(int port)>& announce) {
  RawService service(copies);
  grpc::ServerBuilder builder;
  int port = 0;
  auto credentials = grpc::InsecureServerCredentials();
  if (!tls.certificate.empty()) {
    grpc::SslServerCredentialsOptions options;
    options.pem_key_cert_pairs.push_back({tls.key, tls.certificate});
    credentials = grpc::SslServerCredentials(options);
  }
  builder.SetMaxReceiveMessageSize(-1);
  builder.AddListeningPort("127.0.0.1:0", credentials, &port);
  builder.RegisterCallbackGenericService(&service);
  const auto server = builder.BuildAndStart();
  announce(port);
}

// Asynchronous calls of gRPC's generic stub.
struct GrpcCaller::Impl {
  void next() {
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
  }

  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  std::unique_ptr<grpc::GenericStub> stub;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call;
  std::vector<char> from = std::vector<char>(kLarge, 2);
  std::vector<char> to = std::vector<char>(kLarge);
};

GrpcCaller::GrpcCaller(const std::string& address, const TlsTexts& tls) : impl_(std::make_unique<Impl>()) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  const auto credentials = tls.authority.empty() ? grpc::InsecureChannelCredentials()
                                                 : grpc::SslCredentials({tls.authority, "", ""});
  impl_->stub =
      std::make_unique<grpc::GenericStub>(grpc::CreateCustomChannel(address, credentials, arguments));
  impl_->call = impl_->stub->PrepareCall(&impl_->context, "/x/y", &impl_->queue);
  impl_->call->StartCall(this);
  impl_->next();
}

GrpcCaller::~GrpcCaller() {
  grpc::Status status;
  impl_->context.TryCancel();
  impl_->call->Finish(&status, this);
  impl_->next();
  impl_->queue.Shutdown();
}

void GrpcCaller::push_pull() {
  const grpc::Slice slice(impl_->from.data(), impl_->from.size(), grpc::Slice::STATIC_SLICE);
  grpc::ByteBuffer answer;
  impl_->call->Write(grpc::ByteBuffer(&slice, 1), this);
  impl_->next();
  impl_->call->Read(&answer, this);
  impl_->next();
  copy(answer, impl_->to);
}

}  // namespace bench

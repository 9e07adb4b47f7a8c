#include "bench/peers/grpc_stream.h"

namespace bench {

bool has_grpc() { return false; }

void serve_grpc(bool, const TlsTexts&, const std::function<void(int port)>&) {}

struct GrpcCaller::Impl {};
GrpcCaller::GrpcCaller(const std::string&, const TlsTexts&) {}
GrpcCaller::~GrpcCaller() = default;
void GrpcCaller::push_pull() {}

}  // namespace bench

#include "tutti/base/error.h"
#include "tutti/rpc/stream.h"

namespace tutti::rpc {
namespace {

[[noreturn]] void fail_without_grpc() {
  fail(ErrorKind::Unimplemented,
       "this build has no gRPC, which servers and their clients need: install libgrpc++-dev and build again "
       "(TUTTI_WITH_GRPC)");
}

}  // namespace

std::unique_ptr<Stream> open_stream(const std::string&, const Credentials&, Clock::time_point) {
  fail_without_grpc();
}

std::unique_ptr<Listener> listen(const std::string&, const Credentials&, std::chrono::milliseconds) {
  fail_without_grpc();
}

}  // namespace tutti::rpc

#pragma once

#include <functional>
#include <memory>
#include <string>

// gRPC's generic stream of bytes without anything else: a server that answers every message with one of equal
// size, and its caller.
namespace bench {

inline constexpr size_t kLarge = size_t{64} << 20;

// PEM; all empty: without TLS.
struct TlsTexts {
  std::string certificate;
  std::string key;
  std::string authority;
};

// False if this benchmark was built without gRPC; then the functions below must not be called.
bool has_grpc();

// Calls `announce` with the port, and ends when that returns. A server that copies puts each received message
// into one piece of memory, as any server that uses the data has to; otherwise the message is not touched.
void serve_grpc(bool copies, const TlsTexts& tls, const std::function<void(int port)>& announce);

// Sends a message of kLarge bytes, and receives and copies one.
class GrpcCaller {
 public:
  GrpcCaller(const std::string& address, const TlsTexts& tls);
  ~GrpcCaller();
  GrpcCaller(const GrpcCaller&) = delete;
  GrpcCaller& operator=(const GrpcCaller&) = delete;

  void push_pull();

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace bench

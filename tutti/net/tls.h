#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "tutti/net/credentials.h"

struct ssl_ctx_st;
struct ssl_st;

namespace tutti::net {

// Every connection with TLS begins with it: the type of a record of the handshake.
inline constexpr std::byte kFirstByteOfTls{22};

// The certificates by which one end of encrypted connections is known, and by which it knows the other one.
// Thread-safe.
class Tls {
 public:
  enum class Side { Caller, Listener };

  // Returns null if the credentials do not ask this side to use TLS. Throws InvalidArgument if the
  // certificate, key or authority cannot be used.
  static std::shared_ptr<const Tls> make(const Credentials& credentials, Side side);

  ssl_ctx_st* context() const { return context_.get(); }

 private:
  explicit Tls(std::shared_ptr<ssl_ctx_st> context) : context_(std::move(context)) {}

  const std::shared_ptr<ssl_ctx_st> context_;
};

// One encrypted connection over a non-blocking socket. Not thread-safe. Throws a StreamEnd if it has ended.
class TlsSession {
 public:
  TlsSession(const Tls& tls, int socket);

  // Make a step of the handshake, which is complete when they return true. `host` is the name, or the number,
  // for which the other end's certificate has to be.
  void expect_host(const std::string& host);
  bool connect();
  bool accept();
  // True if the last operation can go on only when the socket can be written to, instead of read.
  bool wants_write() const;

  // Move some bytes, or none if the socket is not ready. A write that has moved none has to be repeated with
  // the same bytes, and perhaps more behind them.
  size_t read(std::span<std::byte> bytes);
  size_t write(std::span<const std::byte> bytes);
  // Returns true if bytes have been decrypted that were not read.
  bool has_pending() const;

 private:
  bool is_done(int result);

  const std::shared_ptr<ssl_st> session_;
};

}  // namespace tutti::net

#include "tutti/net/tls.h"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <string_view>
#include <sys/socket.h>

#include <climits>
#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/net/socket.h"

namespace tutti::net {
namespace {

using BioPointer = std::unique_ptr<BIO, decltype(&BIO_free)>;
using CertificatePointer = std::unique_ptr<X509, decltype(&X509_free)>;
using KeyPointer = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

BioPointer open_text(const std::string& text) {
  return {BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), &BIO_free};
}

// OpenSSL would ask for the password of an encrypted key on the terminal.
int no_password(char*, int, int, void*) { return 0; }

// Returns the next certificate of a PEM text, or null at its end.
CertificatePointer next_certificate(BIO* text) {
  return {PEM_read_bio_X509(text, nullptr, no_password, nullptr), &X509_free};
}

// Uses the first certificate of the text, and sends the others along as the chain to the authority.
bool use_certificates(SSL_CTX* context, const std::string& text) {
  const BioPointer source = open_text(text);
  const CertificatePointer own = next_certificate(source.get());
  if (own == nullptr || SSL_CTX_use_certificate(context, own.get()) != 1) return false;
  while (const CertificatePointer issuer = next_certificate(source.get()))
    if (SSL_CTX_add1_chain_cert(context, issuer.get()) != 1) return false;
  return true;
}

bool use_key(SSL_CTX* context, const std::string& text) {
  const BioPointer source = open_text(text);
  const KeyPointer key(PEM_read_bio_PrivateKey(source.get(), nullptr, no_password, nullptr), &EVP_PKEY_free);
  return key != nullptr && SSL_CTX_use_PrivateKey(context, key.get()) == 1 &&
         SSL_CTX_check_private_key(context) == 1;
}

// Looks at the certificate in use.
bool has_expired(const SSL_CTX* context) {
  return X509_cmp_current_time(X509_get0_notAfter(SSL_CTX_get0_certificate(context))) < 0;
}

bool trust_authorities(SSL_CTX* context, const std::string& text) {
  const BioPointer source = open_text(text);
  bool any = false;
  while (const CertificatePointer authority = next_certificate(source.get())) {
    any = true;
    if (X509_STORE_add_cert(SSL_CTX_get_cert_store(context), authority.get()) != 1) return false;
  }
  return any;
}

// --- A socket for OpenSSL. OpenSSL's own raises SIGPIPE when the other end has closed the connection.

int socket_of(BIO* bio) { return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio))); }

// Tells OpenSSL whether to try again.
int result_of(BIO* bio, ssize_t moved, int flag) {
  BIO_clear_retry_flags(bio);
  if (moved < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_flags(bio, flag | BIO_FLAGS_SHOULD_RETRY);
  return static_cast<int>(moved);
}

int send_bytes(BIO* bio, const char* bytes, int size) {
  return result_of(bio, ::send(socket_of(bio), bytes, static_cast<size_t>(size), MSG_NOSIGNAL),
                   BIO_FLAGS_WRITE);
}

int receive_bytes(BIO* bio, char* bytes, int size) {
  return result_of(bio, ::recv(socket_of(bio), bytes, static_cast<size_t>(size), 0), BIO_FLAGS_READ);
}

long control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

BIO* socket_bio(int socket) {
  // Never freed: a connection may live until the process ends.
  static BIO_METHOD* const kMethod = [] {
    BIO_METHOD* method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket without SIGPIPE");
    BIO_meth_set_write(method, send_bytes);
    BIO_meth_set_read(method, receive_bytes);
    BIO_meth_set_ctrl(method, control);
    return method;
  }();
  BIO* bio = BIO_new(kMethod);
  if (bio == nullptr) return nullptr;
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(socket)));
  BIO_set_init(bio, 1);
  return bio;
}

// --- Errors.

constexpr std::array kRefusals = {
    SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED, SSL_R_TLSV1_ALERT_UNKNOWN_CA,
    SSL_R_SSLV3_ALERT_BAD_CERTIFICATE,       SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN,
    SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED,   SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE,
    SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE,     SSL_R_TLSV1_ALERT_DECRYPT_ERROR};

// Explains errors that no further attempt can fix; returns "" for all others.
std::string mistake(const SSL* session, int reason) {
  if (reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_PACKET_LENGTH_TOO_LONG)
    return "it does not use TLS, but this task does (--tls-ca). Give all tasks the same --tls-* flags";
  if (reason == SSL_R_CERTIFICATE_VERIFY_FAILED) {
    const long why = SSL_get_verify_result(session);
    if (why == X509_V_ERR_HOSTNAME_MISMATCH || why == X509_V_ERR_IP_ADDRESS_MISMATCH)
      return "its certificate was issued for another host name";
    return fmt::format(
        "its certificate was not issued by the authority in --tls-ca, or is not valid at this time ({})",
        X509_verify_cert_error_string(why));
  }
  if (reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE)
    return "it has no certificate, which this task requires: give it --tls-cert and --tls-key";
  if (std::find(kRefusals.begin(), kRefusals.end(), reason) != kRefusals.end())
    return "it does not accept this task's certificate, or requires one: give this task --tls-cert and "
           "--tls-key from an authority that the other one trusts";
  return "";
}

// Errors that an earlier call of this thread has left would be taken for errors of the next one.
void forget_errors() {
  errno = 0;
  ERR_clear_error();
}

[[noreturn]] void fail_tls(const SSL* session, int error, int system_error) {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  const std::string wrong = mistake(session, ERR_GET_REASON(code));
  if (!wrong.empty()) throw StreamEnd(ErrorKind::InvalidArgument, wrong);
  if (code != 0 && ERR_GET_LIB(code) != ERR_LIB_SYS &&
      ERR_GET_REASON(code) != SSL_R_UNEXPECTED_EOF_WHILE_READING) {
    const char* reason = ERR_reason_error_string(code);
    throw StreamEnd(SSL_is_init_finished(session) != 0 ? ErrorKind::DataLoss : ErrorKind::InvalidArgument,
                    fmt::format("TLS failed: {}", reason == nullptr ? "?" : reason));
  }
  throw StreamEnd(ErrorKind::PeerLost,
                  error == SSL_ERROR_SYSCALL && system_error != 0 ? errno_text(system_error) : kClosed);
}

}  // namespace

std::shared_ptr<const Tls> Tls::make(const Credentials& credentials, Side side) {
  const bool listens = side == Side::Listener;
  if ((listens ? credentials.certificate : credentials.authority).empty()) return nullptr;
  const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(listens ? TLS_server_method() : TLS_client_method()),
                                         &SSL_CTX_free);
  if (context == nullptr) fail(ErrorKind::Overloaded, "OpenSSL has no memory for a TLS context");
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  // Every connection is made anew, so that a certificate is looked at each time.
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context.get(), 0);
  const bool has_own = !credentials.certificate.empty();
  const bool usable = !has_own || (use_certificates(context.get(), credentials.certificate) &&
                                   use_key(context.get(), credentials.key));
  ERR_clear_error();
  if (!usable)
    fail(
        ErrorKind::InvalidArgument,
        "TLS cannot use the files of --tls-cert and --tls-key: one of them is damaged, or they do not belong "
        "together");
  if (has_own && has_expired(context.get()))
    fail(ErrorKind::InvalidArgument,
         "the certificate of --tls-cert has expired, so that no other task would accept it: renew it");
  if (!credentials.authority.empty()) {
    const bool trusted = trust_authorities(context.get(), credentials.authority);
    ERR_clear_error();
    if (!trusted)
      fail(ErrorKind::InvalidArgument, "TLS cannot use the authority: check that --tls-ca is a certificate");
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  }
  return std::shared_ptr<const Tls>(new Tls(context));
}

TlsSession::TlsSession(const Tls& tls, int socket) : session_(SSL_new(tls.context()), &SSL_free) {
  BIO* const bio = session_ == nullptr ? nullptr : socket_bio(socket);
  if (bio == nullptr) fail(ErrorKind::Overloaded, "OpenSSL has no memory for a TLS connection");
  SSL_set_bio(session_.get(), bio, bio);
}

void TlsSession::expect_host(const std::string& host) {
  std::array<unsigned char, sizeof(in6_addr)> number{};
  const bool is_number = inet_pton(AF_INET, host.c_str(), number.data()) == 1 ||
                         inet_pton(AF_INET6, host.c_str(), number.data()) == 1;
  const bool expects = is_number
                           ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(session_.get()), host.c_str()) == 1
                           : SSL_set1_host(session_.get(), host.c_str()) == 1 &&
                                 SSL_set_tlsext_host_name(session_.get(), host.c_str()) == 1;
  if (!expects) fail(ErrorKind::InvalidArgument, "'{}' cannot be the name in a certificate", host);
}

// Returns false if the operation has to be repeated when the socket is ready.
bool TlsSession::is_done(int result) {
  if (result > 0) return true;
  const int system_error = errno;
  const int error = SSL_get_error(session_.get(), result);
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return false;
  fail_tls(session_.get(), error, system_error);
}

bool TlsSession::connect() {
  forget_errors();
  return is_done(SSL_connect(session_.get()));
}

bool TlsSession::accept() {
  forget_errors();
  return is_done(SSL_accept(session_.get()));
}

bool TlsSession::wants_write() const { return SSL_want_write(session_.get()); }

size_t TlsSession::read(std::span<std::byte> bytes) {
  forget_errors();
  const int result =
      SSL_read(session_.get(), bytes.data(), static_cast<int>(std::min<size_t>(bytes.size(), INT_MAX)));
  return is_done(result) ? static_cast<size_t>(result) : 0;
}

size_t TlsSession::write(std::span<const std::byte> bytes) {
  forget_errors();
  const int result =
      SSL_write(session_.get(), bytes.data(), static_cast<int>(std::min<size_t>(bytes.size(), INT_MAX)));
  return is_done(result) ? static_cast<size_t>(result) : 0;
}

bool TlsSession::has_pending() const { return SSL_pending(session_.get()) > 0; }

}  // namespace tutti::net

// Tests which callers are accepted, and what others are told. The certificates are made by openssl.
#include <functional>
#include <future>
#include <optional>
#include <set>
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tutti/base/secret.h"
#include "tutti/base/test_errors.h"
#include "tutti/net/test_certificates.h"
#include "tutti/rpc/channel.h"
#include "tutti/rpc/frame.h"
#include "tutti/rpc/host.h"
#include "tutti/rpc/test_service.h"
#include "tutti/rpc/wire.h"

namespace tutti::rpc {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class Security : public testing::Test {
 protected:
  static void SetUpTestSuite() { made = std::make_unique<net::Certificates>(); }
  static void TearDownTestSuite() { made.reset(); }

  // Returns the credentials of a task with this certificate and this authority; "" means none.
  static net::Credentials credentials_of(const std::string& name, const std::string& authority) {
    net::Credentials credentials;
    if (!name.empty()) credentials.certificate = made->text(name + ".pem");
    if (!name.empty()) credentials.key = made->text(name + ".key");
    if (!authority.empty()) credentials.authority = made->text(authority + ".pem");
    return credentials;
  }
  static net::Credentials with_secret(const std::string& secret, net::Credentials credentials = {}) {
    credentials.secret = secret;
    return credentials;
  }

  void expect_understood(const net::Credentials& of_server, const net::Credentials& of_caller) {
    TestService service;
    const Host host({.credentials = of_server}, service);
    Channel channel(address_of(host), {.credentials = of_caller});
    const auto bytes = pattern(5000000);
    EXPECT_TRUE(equal(channel.call("echo", {{}, {{bytes}}}).pieces.at(0).bytes, bytes));
  }
  template <class Matcher>
  void expect_refused(const net::Credentials& of_server, const net::Credentials& of_caller,
                      const Matcher& text) {
    TestService service;
    const Host host({.credentials = of_server}, service);
    Channel channel(address_of(host), {.credentials = of_caller, .who = "ps/0"});
    expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("ps/0: "), text),
                 [&] { channel.connect(kEventually); });
  }

  static std::unique_ptr<net::Certificates> made;
  TestService service_;
};

std::unique_ptr<net::Certificates> Security::made;

TEST_F(Security, a_task_whose_certificate_has_expired_says_so_at_once) {
  expect_error(ErrorKind::InvalidArgument, HasSubstr("the certificate of --tls-cert has expired"),
               [&] { const Host host({.credentials = credentials_of("expired", "ca")}, service_); });
}

TEST_F(Security, tls_and_mutual_tls_carry_bytes) {
  expect_understood(credentials_of("server", ""), credentials_of("", "ca"));
  expect_understood(credentials_of("server", ""), credentials_of("worker", "ca"));
  expect_understood(credentials_of("server", "ca"), credentials_of("worker", "ca"));
  expect_understood(with_secret("x", credentials_of("server", "ca")),
                    with_secret("x", credentials_of("worker", "ca")));
}

TEST_F(Security, a_server_of_an_unknown_authority_is_refused) {
  expect_refused(credentials_of("server", ""), credentials_of("", "other-ca"), HasSubstr("authority"));
  expect_refused(credentials_of("unknown-peer", ""), credentials_of("", "ca"), HasSubstr("authority"));
}

TEST_F(Security, a_server_of_another_name_is_refused) {
  expect_refused(credentials_of("worker", ""), credentials_of("", "ca"), HasSubstr("another host name"));
}

TEST_F(Security, a_caller_without_a_certificate_that_is_known_is_refused) {
  expect_refused(credentials_of("server", "ca"), credentials_of("", "ca"),
                 AllOf(HasSubstr("certificate"), HasSubstr("--tls-cert")));
  expect_refused(credentials_of("server", "ca"), credentials_of("unknown-peer", "ca"),
                 HasSubstr("certificate"));
}

TEST_F(Security, tls_at_one_end_alone_is_refused) {
  expect_refused(credentials_of("server", ""), {}, AllOf(HasSubstr("TLS"), HasSubstr("--tls-ca")));
  expect_refused({}, credentials_of("", "ca"), AllOf(HasSubstr("TLS"), HasSubstr("--tls")));
}

TEST_F(Security, a_caller_with_the_secret_is_served) {
  expect_understood(with_secret("open sesame"), with_secret("open sesame"));
  expect_understood(with_secret(std::string(1000, 'x')), with_secret(std::string(1000, 'x')));
}

TEST_F(Security, a_caller_without_the_secret_is_refused_and_both_say_so) {
  std::promise<std::string> report;
  const Host host({.credentials = with_secret("right"),
                   .report = [&](const std::string& text) { report.set_value(text); }},
                  service_);
  Channel channel(address_of(host), {.credentials = with_secret("wrong"), .who = "ps/0"});
  expect_error(
      ErrorKind::InvalidArgument,
      AllOf(HasSubstr("ps/0: the caller and this server have different secrets"), HasSubstr("TUTTI_SECRET")),
      [&] { channel.call("nothing", {}); });
  EXPECT_THAT(report.get_future().get(), AllOf(HasSubstr("127.0.0.1:"), HasSubstr("different secrets")));
}

// Before the handshake, nothing may be sent that allows an offline search for the secret, however short it
// is.
TEST_F(Security, an_unknown_peer_hears_a_nonce_and_nothing_that_depends_on_the_secret) {
  const Host host({.credentials = with_secret("1")}, service_);
  const auto soon = Clock::now() + kEventually;
  std::set<std::string> nonces;
  for (int i = 0; i < 2; ++i) {
    const auto stream = candidate_of(address_of(host));
    Wire wire(*stream);
    const std::string challenge = wire.receive({}, {}, {.deadline = soon}, {.deadline = soon}).head;
    EXPECT_EQ(challenge.size(), kNonceSize);
    nonces.insert(challenge);
    Frame guess;
    guess.kind = FrameKind::Proof;
    guess.head = random_key() + std::string(kProofSize, '0') + R"({"hello": {}, "arena": ""})";
    wire.finish();
    wire.send(guess, {}, {.deadline = soon});
    expect_error(ErrorKind::InvalidArgument, HasSubstr("different secrets"),
                 [&] { wire.receive({}, {}, {.deadline = soon}, {.deadline = soon}); });
  }
  EXPECT_EQ(nonces.size(), 2U);
}

TEST_F(Security, a_secret_at_one_end_alone_is_refused) {
  expect_refused(with_secret("right"), {}, HasSubstr("this server has a secret, but the caller has none"));
  expect_refused({}, with_secret("right"), HasSubstr("the caller has a secret, but this server has none"));
}

TEST_F(Security, a_server_needs_a_whole_certificate) {
  expect_error(ErrorKind::InvalidArgument, HasSubstr("--tls-cert"),
               [&] { Host({.credentials = credentials_of("", "ca")}, service_); });
  net::Credentials mixed = credentials_of("server", "");
  mixed.key = made->text("worker.key");
  expect_error(ErrorKind::InvalidArgument, HasSubstr("--tls-key"),
               [&] { Host({.credentials = mixed}, service_); });
}

TEST_F(Security, a_server_listens_to_other_machines_if_they_must_prove_something) {
  const auto listens = [&](const net::Credentials& credentials) {
    Host({.address = "0.0.0.0:0", .credentials = credentials}, service_);
  };
  EXPECT_NO_THROW(listens(with_secret("x")));
  EXPECT_NO_THROW(listens(credentials_of("server", "ca")));
  // This certificate says who the server is, and everybody may call it.
  expect_error(ErrorKind::InvalidArgument, HasSubstr("TUTTI_SECRET"),
               [&] { listens(credentials_of("server", "")); });
}

TEST_F(Security, credentials_come_from_flags) {
  RunConfig config;
  config.security.secret = "x";
  EXPECT_EQ(net::credentials_of(config).secret, "x");
  config.security.tls_cert = made->path("server.pem");
  expect_error(ErrorKind::InvalidArgument, HasSubstr("belong together"),
               [&] { net::credentials_of(config); });
  config.security.tls_key = made->path("server.key");
  config.security.tls_ca = made->path("ca.pem");
  EXPECT_EQ(net::credentials_of(config).authority, made->text("ca.pem"));
  EXPECT_EQ(net::credentials_of(config).certificate, made->text("server.pem"));
  config.security.tls_ca = made->path("server.key");
  expect_error(ErrorKind::InvalidArgument,
               AllOf(HasSubstr("--tls-ca"), HasSubstr("server.key"), HasSubstr("CERTIFICATE")),
               [&] { net::credentials_of(config); });
  config.security.tls_ca = made->path("none.pem");
  expect_error(ErrorKind::InvalidArgument, HasSubstr("none.pem"), [&] { net::credentials_of(config); });
}

}  // namespace
}  // namespace tutti::rpc

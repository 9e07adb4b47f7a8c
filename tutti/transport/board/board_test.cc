// Tests how a board of the ranks handles connections from processes that are not ranks.

#include <algorithm>
#include <array>
#include <atomic>
#include <future>
#include <memory>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/deadline.h"
#include "tutti/base/file.h"
#include "tutti/base/net.h"
#include "tutti/base/ports.h"
#include "tutti/base/secret.h"
#include "tutti/base/test_errors.h"
#include "tutti/base/this_host.h"
#include "tutti/base/version.h"
#include "tutti/net/listener.h"
#include "tutti/net/stream.h"
#include "tutti/net/test_certificates.h"
#include "tutti/rpc/frame.h"
#include "tutti/rpc/handshake.h"
#include "tutti/rpc/wire.h"
#include "tutti/transport/board/protocol.h"
#include "tutti/transport/test_messages.h"
#include "tutti/transport/test_network.h"

namespace tutti::comm::board_test {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using ::testing::AllOf;
using testing::Child;
using testing::find_board;
using ::testing::HasSubstr;
using testing::kLong;
using ::testing::Not;
using testing::serve_board;

// A line with the version, and the frame with the nonce.
constexpr size_t kChallengeSize = 100 + rpc::kPrefixSize + kNonceSize;
// A line, and the frame with the reason of a refusal.
constexpr size_t kRefusalSize = 1000;

class UnknownPeer {
 public:
  explicit UnknownPeer(int port)
      : socket_(std::move(connect_within(resolve("127.0.0.1", port).addresses.at(0), kLong).socket)) {
    EXPECT_GE(socket_.get(), 0);
  }

  void say(std::string_view text) const { ::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL); }
  // Returns everything received until it is `size` bytes or the connection is closed.
  std::string hear(size_t size = 1000) const {
    std::string heard;
    std::array<char, 1000> buffer;
    const auto deadline = Clock::now() + kLong;
    while (heard.size() < size) {
      pollfd ready{socket_.get(), POLLIN, 0};
      if (poll(&ready, 1, poll_time(deadline)) <= 0) ADD_FAILURE() << "is not closed";
      const ssize_t count =
          recv(socket_.get(), buffer.data(), std::min(buffer.size(), size - heard.size()), 0);
      if (count <= 0) break;
      heard.append(buffer.data(), static_cast<size_t>(count));
    }
    return heard;
  }
  const FileDescriptor& socket() const { return socket_; }

 private:
  FileDescriptor socket_;
};

TEST(Board, a_byte_that_is_held_open_keeps_nobody_waiting) {
  auto served = serve_tcp_rendezvous({.farewell = kLong});
  const auto port = served.port;
  const UnknownPeer before(port);
  before.say(std::string(1, '\0'));
  auto client = find_board(port);
  const UnknownPeer between(port);
  between.say(std::string(1, '\0'));
  client->set("a", "1");
  EXPECT_EQ(served.board->peek("a"), "1");
  client.reset();
  served.board.reset();  // waits only for ranks, not for unknown peers
}

std::string line_of(const std::string& purpose) {
  return fmt::format("tutti-rpc {} {} {} either\n", rpc::kProtocol, version(), purpose);
}

// A request to set a value.
std::string request() {
  rpc::Frame frame;
  frame.method = board::kSet;
  frame.pieces = {{3}, {200}};
  return rpc::encode(frame) + "job" + std::string(200, 'x');
}

TEST(Board, an_unknown_peer_reads_and_writes_nothing) {
  const auto served = serve_tcp_rendezvous({.credentials = {.secret = "secret"}});
  served.board->set("job", "mine");
  for (const std::string& said : {line_of(kForRanks) + request(), request(), std::string(96, '0'),
                                  std::string("GET / HTTP/1.1\r\n\r\n"), std::string(1000, '\xff')}) {
    const UnknownPeer unknown_peer(served.port);
    unknown_peer.say(said);
    shutdown(unknown_peer.socket().get(), SHUT_WR);
    const std::string heard = unknown_peer.hear(size_t{1} << 20);
    EXPECT_TRUE(heard.starts_with(line_of(kForRanks))) << heard;
    EXPECT_LE(heard.size(), kChallengeSize + kRefusalSize);
    EXPECT_THAT(heard, Not(HasSubstr("mine")));
  }
  EXPECT_EQ(served.board->peek("job"), "mine");
}

TEST(Board, nothing_that_an_unknown_peer_gets_tells_of_the_key) {
  const auto served = serve_tcp_rendezvous({.credentials = {.secret = "secret"}});
  rpc::Frame proof;
  proof.kind = rpc::FrameKind::Proof;
  proof.head = std::string(kNonceSize + kProofSize, '0');
  const size_t challenge = line_of(kForRanks).size() + rpc::kPrefixSize + kNonceSize;
  const auto of_unknown_peer = [&] {
    const UnknownPeer unknown_peer(served.port);
    unknown_peer.say(line_of(kForRanks));
    const std::string nonce = unknown_peer.hear(challenge);
    unknown_peer.say(rpc::encode(proof));
    return std::pair(nonce, unknown_peer.hear());
  };
  const auto [one, verdict] = of_unknown_peer();
  const auto [other, same] = of_unknown_peer();
  EXPECT_NE(one, other);  // the nonce
  EXPECT_THAT(verdict, HasSubstr("different secrets"));
  EXPECT_EQ(verdict, same);
}

TEST(Board, those_with_another_key_are_told_so) {
  std::promise<std::string> report;
  const auto served = serve_tcp_rendezvous(
      {.credentials = {.secret = "one"}, .report = [&](const std::string& text) { report.set_value(text); }});
  expect_error(ErrorKind::InvalidArgument, HasSubstr("another job uses"), [&] {
    find_tcp_rendezvous({.hosts = {"127.0.0.1"}, .port = served.port, .credentials = {.secret = "other"}});
  });
  const auto found =
      find_tcp_rendezvous({.hosts = {"127.0.0.1"}, .port = served.port, .credentials = {.secret = "one"}});
  found.board->set("a", "1");
  EXPECT_EQ(served.board->peek("a"), "1");
  EXPECT_THAT(report.get_future().get(),
              AllOf(HasSubstr("127.0.0.1:"), HasSubstr("was refused"), HasSubstr("different secrets")));
}

TEST(Board, is_not_found_by_those_for_whom_it_is_not) {
  const auto served = serve_tcp_rendezvous({.credentials = {.secret = "secret"}, .purpose = "launchers"});
  const FindOptions options{.hosts = {"127.0.0.1"},
                            .port = served.port,
                            .credentials = {.secret = "secret"},
                            .timeout = milliseconds(1)};
  expect_error(ErrorKind::Timeout, HasSubstr("did not answer as the board"),
               [&] { find_tcp_rendezvous(options); });
  FindOptions right = options;
  right.purpose = "launchers";
  right.timeout = kLong;
  EXPECT_TRUE(try_tcp_rendezvous(right).board);
}

// As a board does that may start no more threads.
TEST(Board, without_threads_is_overloaded_and_its_callers_do_not_wait_for_it) {
  const net::Listener listener("127.0.0.1:0");
  std::atomic<bool> over = false;
  std::thread board([&] {
    while (!over) {
      FileDescriptor socket = listener.accept(milliseconds(1));
      if (socket.get() < 0) continue;
      net::Stream caller(std::move(socket));
      rpc::turn_away(caller, Error(ErrorKind::Overloaded, "no thread for a caller"), kForRanks);
    }
  });
  expect_error(ErrorKind::Overloaded,
               AllOf(HasSubstr("the board of rank 0"), HasSubstr("no thread for a caller")), [&] {
                 find_tcp_rendezvous({.hosts = {"127.0.0.1"},
                                      .port = static_cast<uint16_t>(listener.port()),
                                      .timeout = milliseconds(2000)});
               });
  over = true;
  board.join();
}

TEST(Board, quotes_what_an_unknown_peer_sends_in_a_form_that_does_no_harm) {
  std::promise<std::string> report;
  const auto served =
      serve_tcp_rendezvous({.report = [&](const std::string& text) { report.set_value(text); }});
  const UnknownPeer unknown_peer(served.port);
  unknown_peer.say("HELO\x1b[2J");
  EXPECT_THAT(report.get_future().get(), HasSubstr("it sent 'HELO?[2J'"));
}

// A process that listens in place of the board learns nothing that grants access, and clients reject it.
TEST(Board, a_server_without_the_key_is_refused) {
  const Listening listening = listen_at(resolve("127.0.0.1", 0).addresses.at(0));
  std::thread liar([&] {
    pollfd ready{listening.socket.get(), POLLIN, 0};
    poll(&ready, 1, -1);
    const FileDescriptor caller(accept(listening.socket.get(), nullptr, nullptr));
    rpc::Frame challenge;
    challenge.kind = rpc::FrameKind::Challenge;
    challenge.head = std::string(kNonceSize, '0');
    rpc::Frame welcome;
    welcome.kind = rpc::FrameKind::Welcome;
    welcome.head = std::string(kProofSize, '0');
    const std::string line = line_of(kForRanks);
    const auto say = [&](const std::string& said) {
      ::send(caller.get(), said.data(), said.size(), MSG_NOSIGNAL);
    };
    say(line + rpc::encode(challenge));
    std::array<char, 200> buffer;
    for (size_t heard = 0; heard <= line.size();)
      heard += static_cast<size_t>(recv(caller.get(), buffer.data(), buffer.size(), 0));
    say(rpc::encode(welcome));
    while (recv(caller.get(), buffer.data(), buffer.size(), 0) > 0) {
    }
  });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("another job uses"), [&] {
    find_tcp_rendezvous({.hosts = {"127.0.0.1"},
                         .port = static_cast<uint16_t>(listening.port),
                         .credentials = {.secret = "secret"}});
  });
  liar.join();
}

TEST(Board, a_client_that_sends_nonsense_is_refused_and_changes_nothing) {
  const auto served = serve_tcp_rendezvous({});
  const net::TimeLimits time{.deadline = Clock::now() + kLong};
  const auto open = [&] {
    return net::open_stream(fmt::format("127.0.0.1:{}", served.port), nullptr, time.deadline);
  };
  expect_error(ErrorKind::PeerLost, HasSubstr("is for ranks, but this end for calls"),
               [&] { rpc::exchange_versions(*open(), time); });
  const auto stream = open();
  rpc::exchange_versions(*stream, time, kForRanks);
  rpc::Wire wire(*stream);
  rpc::greet_host(wire, "", Json::object(), nullptr, time, kForRanks);
  for (const char* method : {"set", "drop"}) {
    rpc::Frame frame;
    frame.method = method;
    frame.pieces = {{3}, {3}};
    if (method == std::string("set")) frame.pieces.pop_back();
    const std::string bytes(3 * frame.pieces.size(), 'x');
    wire.send(frame, std::array{net::ConstBytes(as_bytes(bytes))}, time);
    EXPECT_EQ(wire.receive({}, {}, time, time).kind, rpc::FrameKind::Failure);
    wire.finish();
  }
  rpc::Frame frame;
  frame.method = "set";
  frame.pieces = {{size_t{1} << 40}, {size_t{1} << 40}};
  EXPECT_THROW(
      {
        wire.send(frame, {}, time);
        wire.receive({}, {}, time, time);
      },
      Error);
  EXPECT_EQ(served.board->peek("xxx"), std::nullopt);
}

TEST(Board, silent_unknown_peers_keep_no_rank_out) {
  const auto served = serve_tcp_rendezvous({.credentials = {.secret = "secret"}});
  std::vector<std::unique_ptr<UnknownPeer>> unknown_peers;
  for (int i = 0; i < 200; ++i) unknown_peers.push_back(std::make_unique<UnknownPeer>(served.port));
  const auto found =
      find_tcp_rendezvous({.hosts = {"127.0.0.1"}, .port = served.port, .credentials = {.secret = "secret"}});
  found.board->set("a", "1");
  EXPECT_EQ(served.board->peek("a"), "1");
  // The oldest unknown peers were disconnected.
  EXPECT_LE(unknown_peers.front()->hear().size(), kChallengeSize + kRefusalSize);
}

TEST(Board, is_encrypted_for_those_with_certificates_and_refuses_others) {
  const net::Certificates certificates;
  const auto credentials = [&](const std::string& name) {
    return net::Credentials{.certificate = certificates.text(name + ".pem"),
                            .key = certificates.text(name + ".key"),
                            .authority = certificates.text("ca.pem")};
  };
  const auto served = serve_tcp_rendezvous({.credentials = credentials("server")});
  const auto find = [&](const net::Credentials& of_client) {
    return find_tcp_rendezvous({.hosts = {"127.0.0.1"}, .port = served.port, .credentials = of_client}).board;
  };
  const auto client = find(credentials("worker"));
  client->set("a", "1");
  EXPECT_EQ(served.board->peek("a"), "1");
  expect_error(ErrorKind::InvalidArgument, HasSubstr("this server uses TLS, but the caller does not"),
               [&] { find({}); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("it does not accept this task's certificate"),
               [&] { find(credentials("unknown-peer")); });
  const auto plain = serve_board();
  expect_error(ErrorKind::InvalidArgument, HasSubstr("it does not use TLS"), [&] {
    find_tcp_rendezvous({.hosts = {"127.0.0.1"}, .port = plain.port, .credentials = credentials("worker")});
  });
}

TEST(Board, does_with_few_descriptors) {
  const auto port = static_cast<uint16_t>(free_ports(1)[0]);
  const Child server([&] {
    const rlimit few{64, 64};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    const auto served = serve_board(port);
    while (true) ::pause();
  });
  find_board(port);
  std::vector<std::unique_ptr<UnknownPeer>> unknown_peers;
  for (int i = 0; i < 100; ++i) unknown_peers.push_back(std::make_unique<UnknownPeer>(port));
  const auto client = find_board(port);
  client->set("a", "1");
  EXPECT_EQ(client->get("a", kLong), "1");
}

// Returns an error number, or 0.
int connect_to(const std::string& host, int port) {
  return connect_within(resolve(host, port).addresses.at(0), kLong).error;
}

TEST(Board, listens_at_the_address_that_it_was_given_and_at_no_other) {
  const auto served = serve_board();
  EXPECT_EQ(connect_to("127.0.0.1", served.port), 0);
  EXPECT_EQ(connect_to("127.0.0.2", served.port), ECONNREFUSED);
  for (const std::string& host : own_addresses())
    EXPECT_EQ(connect_to(host, served.port), ECONNREFUSED) << host;
  const auto everywhere = serve_tcp_rendezvous({.host = ""});
  EXPECT_EQ(connect_to("127.0.0.2", everywhere.port), 0);
  for (const std::string& host : own_addresses()) EXPECT_EQ(connect_to(host, everywhere.port), 0) << host;
}

}  // namespace
}  // namespace tutti::comm::board_test

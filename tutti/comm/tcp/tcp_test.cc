#include "tutti/transport/tcp/tcp.h"

#include <algorithm>
#include <array>
#include <latch>
#include <optional>
#include <poll.h>
#include <sys/socket.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/address.h"
#include "tutti/base/deadline.h"
#include "tutti/base/file.h"
#include "tutti/base/net.h"
#include "tutti/base/ports.h"
#include "tutti/base/test_errors.h"
#include "tutti/base/text.h"
#include "tutti/net/credentials.h"
#include "tutti/net/test_certificates.h"
#include "tutti/transport/test_messages.h"
#include "tutti/transport/test_network.h"

namespace tutti::comm::tcp_test {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using ::testing::AllOf;
using testing::as_ranks;
using testing::Child;
using testing::exchange_and_look;
using testing::expect_no_errors;
using ::testing::HasSubstr;
using testing::kLong;
using testing::meet;
using testing::names;
using ::testing::Not;
using testing::operation;
using testing::Outcome;

std::unique_ptr<Transport> over_tcp(const std::shared_ptr<Rendezvous>& board, int rank, int world,
                                    milliseconds timeout = kLong) {
  return tcp_transport(board, {.rank = rank, .world = world, .who = names(world), .timeout = timeout});
}

std::unique_ptr<Transport> encrypted(const net::Certificates& certificates,
                                     const std::shared_ptr<Rendezvous>& board, int rank, int world,
                                     const std::string& name = "worker") {
  const net::Credentials credentials{.certificate = certificates.text(name + ".pem"),
                                     .key = certificates.text(name + ".key"),
                                     .authority = certificates.text("ca.pem")};
  return tcp_transport(
      board,
      {.rank = rank, .world = world, .who = names(world), .credentials = credentials, .timeout = kLong});
}

class TcpWorlds : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Network, TcpWorlds, ::testing::Values(1, 2, 3, 4, 8));

TEST_P(TcpWorlds, exchange_moves_messages_of_any_size) {
  const auto board = std::make_shared<LocalRendezvous>();
  expect_no_errors(as_ranks(GetParam(), [&](int rank) {
    const auto transport = over_tcp(board, rank, GetParam());
    testing::exchange_messages_of_any_size(*transport);
  }));
}

// The ranks have certificates of one authority, each for another name.
TEST_P(TcpWorlds, moves_encrypted_messages_of_any_size) {
  const net::Certificates certificates;
  const auto board = std::make_shared<LocalRendezvous>();
  expect_no_errors(as_ranks(GetParam(), [&](int rank) {
    const auto transport = encrypted(certificates, board, rank, GetParam());
    testing::exchange_messages_of_any_size(*transport);
    testing::send_and_recv_beside_exchanges(*transport);
  }));
}

TEST(Tcp, refuses_a_rank_whose_certificate_is_of_another_authority) {
  const net::Certificates certificates;
  const auto board = std::make_shared<LocalRendezvous>();
  const auto outcomes = as_ranks(
      2, [&](int rank) { encrypted(certificates, board, rank, 2, rank == 0 ? "server" : "unknown-peer"); });
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome);
    EXPECT_THAT(outcome->what(), HasSubstr("certificate"));
  }
}

TEST(Tcp, refuses_ranks_of_which_only_some_encrypt) {
  const net::Certificates certificates;
  const auto board = std::make_shared<LocalRendezvous>();
  const auto outcomes = as_ranks(2, [&](int rank) {
    if (rank == 0) over_tcp(board, rank, 2);
    if (rank == 1) encrypted(certificates, board, rank, 2);
  });
  ASSERT_TRUE(outcomes[0] && outcomes[1]);
  EXPECT_THAT(outcomes[0]->what(), AllOf(HasSubstr("does not use TLS"), HasSubstr("--tls-cert")));
  EXPECT_THAT(outcomes[1]->what(), AllOf(HasSubstr("uses TLS"), HasSubstr("--tls-cert")));
}

TEST_P(TcpWorlds, messages_between_two_keep_their_order_beside_exchanges) {
  const auto board = std::make_shared<LocalRendezvous>();
  expect_no_errors(as_ranks(GetParam(), [&](int rank) {
    const auto transport = over_tcp(board, rank, GetParam());
    testing::send_and_recv_beside_exchanges(*transport);
  }));
}

TEST(Tcp, two_transports_do_not_mix) {
  const auto board = std::make_shared<LocalRendezvous>();
  expect_no_errors(as_ranks(2, [&](int rank) {
    const auto one = over_tcp(with_prefix(board, "one/"), rank, 2);
    const auto two = over_tcp(with_prefix(board, "two/"), rank, 2);
    std::thread beside([&] {
      for (int i = 0; i < 20; ++i)
        exchange_and_look(
            *two, [](int, int) { return size_t{40000}; }, operation("exchange"));
    });
    for (int i = 0; i < 20; ++i)
      exchange_and_look(
          *one, [](int, int) { return size_t{50000}; }, operation("exchange"));
    beside.join();
  }));
}

TEST(Tcp, splits_into_smaller_groups) {
  const auto board = std::make_shared<LocalRendezvous>();
  expect_no_errors(as_ranks(4, [&](int rank) {
    const auto all = over_tcp(board, rank, 4);
    const std::vector<int> ranks = rank % 2 == 0 ? std::vector{2, 0} : std::vector{1, 3};
    const auto half = all->split(ranks, fmt::format("half/{}", rank % 2));
    ASSERT_EQ(half->world(), 2);
    EXPECT_EQ(ranks[static_cast<size_t>(half->rank())], rank);
    meet(*half, operation("exchange"));
    meet(*all, operation("exchange"));
  }));
}

TEST(Tcp, finds_the_address_of_a_named_host) {
  const auto board = std::make_shared<LocalRendezvous>();
  expect_no_errors(as_ranks(2, [&](int rank) {
    const auto transport = tcp_transport(board, {.rank = rank, .world = 2, .peer_host = "localhost"});
    meet(*transport, operation("exchange"));
  }));
  expect_error(ErrorKind::InvalidArgument, HasSubstr("host 'no-such-host.invalid' cannot be resolved"), [&] {
    tcp_transport(std::make_shared<LocalRendezvous>(),
                  {.rank = 0, .world = 2, .peer_host = "no-such-host.invalid"});
  });
}

TEST(Tcp, names_the_rank_that_never_comes) {
  const auto board = std::make_shared<LocalRendezvous>();
  const auto begin = Clock::now();
  const auto outcomes = as_ranks(2, [&](int rank) { over_tcp(board, rank, 3, milliseconds(300)); });
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome);
    EXPECT_EQ(outcome->kind(), ErrorKind::Timeout);
    EXPECT_THAT(outcome->what(), HasSubstr("connect failed: nothing from worker/2 (host 2) for 0.3 s"));
  }
}

// Forwards to another board, but does not announce that this rank listens before `may_go_on`.
class HeldBoard final : public Rendezvous {
 public:
  HeldBoard(std::shared_ptr<Rendezvous> inner, std::latch& may_go_on)
      : inner_(std::move(inner)), may_go_on_(may_go_on) {}
  void set(const std::string& key, const std::string& value) override {
    if (key.starts_with("port/")) may_go_on_.wait();
    inner_->set(key, value);
  }
  std::string get(const std::string& key, milliseconds timeout) override { return inner_->get(key, timeout); }
  std::optional<std::string> peek(const std::string& key) override { return inner_->peek(key); }
  std::string set_once(const std::string& key, const std::string& value) override {
    return inner_->set_once(key, value);
  }
  std::string hold(const std::string& key, const std::string& value) override {
    return inner_->hold(key, value);
  }
  bool ended() const override { return inner_->ended(); }

 private:
  const std::shared_ptr<Rendezvous> inner_;
  std::latch& may_go_on_;
};

TEST(Tcp, unknown_peers_take_nobodys_place) {
  const std::shared_ptr<Rendezvous> board = std::make_shared<LocalRendezvous>();
  std::latch unknown_peers_came(1);
  std::vector<FileDescriptor> unknown_peers;
  std::thread coming([&] {
    const Address place = parse_address(split(board->get("port/here/1", kLong), ' ').at(0));
    const SocketAddress address = resolve(place.host, place.port).addresses.at(0);
    for (const size_t bytes : {0, 1, 71, 72, 100000}) {
      unknown_peers.push_back(connect_within(address, kLong).socket);
      const std::string noise(bytes, '\0');  // which claims to be rank 0
      ::send(unknown_peers.back().get(), noise.data(), noise.size(), MSG_NOSIGNAL);
    }
    unknown_peers.front() = FileDescriptor();  // it leaves again
    // More than are kept: the oldest have to make room.
    for (int i = 0; i < 300; ++i) unknown_peers.push_back(connect_within(address, kLong).socket);
    unknown_peers_came.count_down();
    // After the line with which every connection begins, it is closed.
    std::array<char, 1000> heard;
    size_t size = 0;
    for (ssize_t count = 1; count > 0; size += static_cast<size_t>(std::max<ssize_t>(count, 0))) {
      pollfd ready{unknown_peers.at(10).get(), POLLIN, 0};
      ASSERT_GT(poll(&ready, 1, poll_time(deadline_after(kLong))), 0);
      count = recv(unknown_peers.at(10).get(), heard.data(), heard.size(), 0);
    }
    EXPECT_LE(size, 100U);
  });
  expect_no_errors(as_ranks(2, [&](int rank) {
    const auto own = rank == 1 ? board : std::make_shared<HeldBoard>(board, unknown_peers_came);
    const auto transport = over_tcp(own, rank, 2);
    meet(*transport, operation("exchange"));
  }));
  coming.join();
}

TEST(Tcp, listens_at_the_port_that_it_is_given_unless_that_is_taken) {
  const HeldPorts held(1);
  const int port = held.numbers().at(0);
  for (const bool taken : {false, true}) {
    const Listening other = taken ? listen_at(resolve("127.0.0.1", port).addresses.at(0)) : Listening{};
    const auto board = std::make_shared<LocalRendezvous>();
    expect_no_errors(as_ranks(2, [&](int rank) {
      const auto transport = tcp_transport(
          board, {.rank = rank, .world = 2, .who = names(2), .port = static_cast<uint16_t>(port)});
      meet(*transport, operation("barrier"));
    }));
    const Address listened = parse_address(split(*board->peek("port/here/1"), ' ').at(0));
    EXPECT_EQ(listened.port == port, !taken);
  }
}

// Rank 2 is busy while the others wait for it. When it arrives, it learns of the failure.
TEST(Tcp, names_the_rank_that_is_late_and_tells_it) {
  const auto board = std::make_shared<LocalRendezvous>();
  std::latch over(2);
  const auto begin = Clock::now();
  const auto outcomes = as_ranks(3, [&](int rank) {
    const auto transport = over_tcp(board, rank, 3);
    meet(*transport, operation("barrier", kLong, 117));
    try {
      if (rank == 2) over.wait();
      meet(*transport, operation("all_reduce", milliseconds(300), 118));
    } catch (const Error&) {
      if (rank != 2) over.count_down();
      throw;
    }
  });
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome);
    EXPECT_EQ(outcome->kind(), ErrorKind::Timeout);
    EXPECT_THAT(outcome->what(),
                AllOf(HasSubstr("all_reduce at step 118 failed: nothing from worker/2 (host 2) for 0.3 s"),
                      Not(HasSubstr("worker/1"))));
    EXPECT_STREQ(outcome->what(), outcomes[0]->what());
  }
}

TEST(Tcp, names_the_rank_that_has_left_and_stays_broken) {
  const auto board = std::make_shared<LocalRendezvous>();
  const auto outcomes = as_ranks(3, [&](int rank) {
    const auto transport = over_tcp(board, rank, 3);
    meet(*transport, operation("barrier"));
    if (rank == 2) return;
    const std::string text =
        error_of(ErrorKind::PeerLost, [&] { meet(*transport, operation("all_reduce")); });
    expect_error(ErrorKind::PeerLost, text, [&] { meet(*transport, operation("all_reduce")); });
    fail(ErrorKind::PeerLost, "{}", text);
  });
  ASSERT_TRUE(outcomes[0] && outcomes[1]);
  EXPECT_THAT(outcomes[0]->what(), HasSubstr("all_reduce failed: worker/2 (host 2) is gone"));
  EXPECT_STREQ(outcomes[0]->what(), outcomes[1]->what());
}

// Rank 0 waits only for rank 1, whose connection does not break, and still learns of the failure of rank 2.
TEST(Tcp, a_failure_reaches_those_that_wait_for_somebody_else) {
  const auto board = std::make_shared<LocalRendezvous>();
  std::latch both_wait(2);
  const auto outcomes = as_ranks(3, [&](int rank) {
    const auto transport = over_tcp(board, rank, 3);
    meet(*transport, operation("barrier"));
    std::byte byte{};
    if (rank == 2) {
      both_wait.wait();
      return;
    }
    both_wait.count_down();
    transport->recv({&byte, 1}, rank + 1, operation("recv"));
  });
  ASSERT_TRUE(outcomes[0] && outcomes[1]);
  EXPECT_THAT(outcomes[1]->what(), AllOf(HasSubstr("recv failed: worker/2 (host 2) is gone")));
  EXPECT_STREQ(outcomes[0]->what(), outcomes[1]->what());
}

TEST(Tcp, a_process_that_is_killed_is_noticed_at_once) {
  const auto port = static_cast<uint16_t>(free_ports(1)[0]);
  const auto as_rank = [&](int rank) {
    auto board = testing::find_board(port);
    auto transport = over_tcp(board, rank, 3);
    meet(*transport, operation("barrier"));
    return transport;
  };
  const auto rest = [&](int rank) {
    const auto transport = as_rank(rank);
    if (rank == 1) meet(*transport, operation("all_reduce"));
    while (true) ::pause();
  };
  const Child one([&] { rest(1); });
  const Child two([&] { rest(2); });
  const auto server = testing::serve_board(port).board;
  const auto transport = as_rank(0);
  const auto begin = Clock::now();
  two.kill();
  // The child may not have passed the barrier yet.
  expect_error(ErrorKind::PeerLost, HasSubstr("failed: worker/2 (host 2) is gone"),
               [&] { meet(*transport, operation("all_reduce")); });
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
}

TEST(Tcp, says_that_the_rank_with_the_board_is_gone) {
  const auto port = static_cast<uint16_t>(free_ports(1)[0]);
  const Child zero([&] {
    const auto server = testing::serve_board(port).board;
    const auto transport = over_tcp(server, 0, 2);
    meet(*transport, operation("barrier"));
    while (true) ::pause();
  });
  const auto board = testing::find_board(port);
  const auto transport = over_tcp(board, 1, 2);
  meet(*transport, operation("barrier"));
  zero.kill();
  expect_error(ErrorKind::PeerLost, HasSubstr("all_reduce failed: worker/0 (host 0) is gone"),
               [&] { meet(*transport, operation("all_reduce")); });
}

TEST(Tcp, a_process_that_is_stopped_is_named_when_the_time_is_over) {
  const auto port = static_cast<uint16_t>(free_ports(1)[0]);
  const Child one([&] {
    const auto transport = over_tcp(testing::find_board(port), 1, 2);
    meet(*transport, operation("barrier", kLong, 117));
    while (true) ::pause();
  });
  const auto board = testing::serve_board(port).board;
  const auto transport = over_tcp(board, 0, 2);
  meet(*transport, operation("barrier", kLong, 117));
  one.stop();
  expect_error(ErrorKind::Timeout,
               HasSubstr("all_reduce at step 118 failed: nothing from worker/1 (host 1) for 0.5 s"),
               [&] { meet(*transport, operation("all_reduce", milliseconds(500), 118)); });
}

}  // namespace
}  // namespace tutti::comm::tcp_test

#include "tutti/transport/rendezvous.h"

#include <cerrno>
#include <latch>
#include <set>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/net.h"
#include "tutti/base/ports.h"
#include "tutti/base/test_errors.h"
#include "tutti/transport/test_messages.h"
#include "tutti/transport/test_network.h"

namespace tutti::comm::rendezvous_test {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using testing::as_ranks;
using testing::Child;
using testing::expect_no_errors;
using testing::find_board;
using ::testing::HasSubstr;
using testing::kLong;
using testing::serve_board;

void expect_to_be_a_board(Rendezvous& board) {
  EXPECT_EQ(board.peek("a"), std::nullopt);
  board.set("a", "1");
  board.set("a", std::string("\0two\n", 5));
  EXPECT_EQ(board.peek("a"), std::string("\0two\n", 5));
  EXPECT_EQ(board.get("a", milliseconds(0)), std::string("\0two\n", 5));
  EXPECT_EQ(board.set_once("b", ""), "");
  EXPECT_EQ(board.set_once("b", "late"), "");
  EXPECT_EQ(board.hold("b", "later"), "");
  EXPECT_EQ(board.get("b", kLong), "");
}

TEST(LocalRendezvous, is_a_board) { expect_to_be_a_board(*std::make_shared<LocalRendezvous>()); }

TEST(LocalRendezvous, names_a_key_that_is_never_set) {
  expect_error(ErrorKind::Timeout, HasSubstr("no rank set 'absent' within 0.03 s"),
               [] { std::make_shared<LocalRendezvous>()->get("absent", milliseconds(30)); });
}

TEST(LocalRendezvous, prefixes_keep_keys_apart) {
  const auto board = std::make_shared<LocalRendezvous>();
  const auto one = with_prefix(board, "one/");
  expect_to_be_a_board(*one);
  expect_to_be_a_board(*with_prefix(board, "two/"));
  EXPECT_EQ(board->peek("one/b"), "");
}

TEST(TcpRendezvous, is_a_board_for_all_its_clients) {
  const auto served = serve_board();
  expect_to_be_a_board(*served.board);
  const auto client = find_board(served.port, "localhost");
  EXPECT_EQ(client->get("b", kLong), "");
  expect_to_be_a_board(*with_prefix(client, "client/"));
  EXPECT_EQ(served.board->get("client/b", kLong), "");
}

TEST(TcpRendezvous, carries_long_values) {
  const auto served = serve_board();
  const auto client = find_board(served.port);
  const std::string value = std::string(size_t{9} << 20, 'x') + "end";
  client->set("long", value);
  EXPECT_EQ(find_board(served.port)->get("long", kLong), value);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("values of up to"),
               [&] { client->set("longer", std::string(size_t{17} << 20, 'x')); });
  EXPECT_EQ(client->get("long", kLong), value);
}

TEST(TcpRendezvous, says_that_it_is_full) {
  const auto served = serve_board();
  const auto client = find_board(served.port);
  const std::string value(size_t{16} << 20, 'x');
  for (int i = 0; i < 20; ++i) client->set("same", value);
  expect_error(ErrorKind::Overloaded, HasSubstr("is full"), [&] {
    for (int i = 0; i < 20; ++i) client->set(fmt::format("{}", i), value);
  });
  EXPECT_EQ(client->set_once("same", ""), value);
}

TEST(TcpRendezvous, wakes_those_that_wait_while_others_ask) {
  const auto served = serve_board();
  expect_no_errors(as_ranks(4, [&](int rank) {
    const auto board = find_board(served.port);
    const auto key = [](int r) { return fmt::format("key/{}", r); };
    std::thread waiting([&] { EXPECT_EQ(board->get(key((rank + 1) % 4), kLong), "here"); });
    EXPECT_EQ(board->peek("other"), std::nullopt);
    board->set(key(rank), "here");
    waiting.join();
  }));
}

TEST(TcpRendezvous, set_once_lets_one_of_many_win) {
  const auto served = serve_board();
  std::vector<std::string> winners(4);
  std::latch ready(4);
  expect_no_errors(as_ranks(4, [&](int rank) {
    const auto board = find_board(served.port);
    ready.arrive_and_wait();
    winners[static_cast<size_t>(rank)] = board->set_once("winner", fmt::format("rank {}", rank));
  }));
  EXPECT_EQ(std::set(winners.begin(), winners.end()).size(), 1);
  EXPECT_EQ(served.board->peek("winner"), winners[0]);
}

TEST(TcpRendezvous, keeps_what_is_held_as_long_as_the_connection) {
  const auto served = serve_board();
  auto holder = find_board(served.port);
  const auto other = find_board(served.port);
  EXPECT_EQ(holder->hold("place", "mine"), "mine");
  EXPECT_EQ(holder->hold("place", "mine again"), "mine");
  EXPECT_EQ(other->hold("place", "taken"), "mine");
  EXPECT_EQ(with_prefix(other, "pla")->peek("ce"), "mine");
  EXPECT_EQ(with_prefix(other, "other ")->hold("place", "free"), "free");
  holder.reset();
  while (served.board->peek("place")) std::this_thread::yield();
  EXPECT_EQ(other->hold("place", "taken"), "taken");
  EXPECT_EQ(served.board->peek("other place"), "free");
}

TEST(TcpRendezvous, gives_its_port_back_and_keeps_its_clients) {
  const auto served = serve_board();
  const auto client = find_board(served.port);
  served.board->stop_listening();
  EXPECT_EQ(connect_within(resolve("127.0.0.1", served.port).addresses.at(0), kLong).error, ECONNREFUSED);
  const auto next = serve_board(served.port);
  client->set("a", "1");
  EXPECT_EQ(served.board->peek("a"), "1");
  EXPECT_EQ(next.board->peek("a"), std::nullopt);
}

TEST(TcpRendezvous, names_key_and_address_of_what_is_never_set) {
  const auto served = serve_board();
  const auto client = find_board(served.port);
  expect_error(
      ErrorKind::Timeout,
      HasSubstr(fmt::format("no rank set 'absent' on the board at 127.0.0.1:{} within 0.03 s", served.port)),
      [&] { client->get("absent", milliseconds(30)); });
}

TEST(TcpRendezvous, says_that_a_port_is_taken) {
  const auto served = serve_board();
  expect_error(ErrorKind::Overloaded,
               HasSubstr(fmt::format("port {} is in use by pid {}", served.port, getpid())),
               [&] { serve_board(served.port); });
}

TEST(TcpRendezvous, says_that_an_address_is_not_this_machines) {
  // An address reserved for documentation (RFC 5737).
  expect_error(ErrorKind::InvalidArgument, HasSubstr("listening at 192.0.2.1"),
               [] { serve_tcp_rendezvous({.host = "192.0.2.1"}); });
}

std::shared_ptr<Rendezvous> find_within(const std::string& host, uint16_t port, milliseconds timeout) {
  return find_tcp_rendezvous({.hosts = {host}, .port = port, .timeout = timeout}).board;
}

TEST(TcpRendezvous, says_what_to_check_where_nobody_answers) {
  const auto port = static_cast<uint16_t>(free_ports(1)[0]);
  expect_error(ErrorKind::Timeout,
               AllOf(HasSubstr(fmt::format("nothing answered at localhost:{} within 0.1 s (", port)),
                     HasSubstr("Connection refused"), HasSubstr("Check that rank 0 of the job is running")),
               [&] { find_within("localhost", port, milliseconds(100)); });
  expect_error(ErrorKind::Timeout, HasSubstr("nothing answered at no-such-host.invalid:1"),
               [] { find_within("no-such-host.invalid", 1, milliseconds(100)); });
}

// The listener may be another program, or a stopped rank 0.
TEST(TcpRendezvous, does_not_wait_for_one_that_listens_and_never_answers) {
  const Listening silent = listen_at(resolve("127.0.0.1", 0).addresses.at(0));
  const auto port = static_cast<uint16_t>(silent.port);
  expect_error(
      ErrorKind::Timeout,
      HasSubstr(fmt::format("a program listens at 127.0.0.1:{}, but did not answer as the board of "
                            "rank 0 of the job within 0.3 s. Check that rank 0 of the job is not stopped",
                            port)),
      [&] { find_within("127.0.0.1", port, milliseconds(300)); });
}

TEST(TcpRendezvous, goes_round_all_names_of_the_host) {
  const auto served = serve_board();
  const FoundRendezvous found =
      find_tcp_rendezvous({.hosts = {"no-such-host.invalid", "127.0.0.1", "localhost"}, .port = served.port});
  EXPECT_EQ(found.host, "127.0.0.1");
  served.board->set("a", "1");
  EXPECT_EQ(found.board->get("a", kLong), "1");
}

TEST(TcpRendezvous, waits_for_the_server_to_come) {
  const auto port = static_cast<uint16_t>(free_ports(1)[0]);
  std::shared_ptr<Rendezvous> client;
  std::thread early([&] { client = find_board(port); });
  const auto server = serve_board(port).board;
  early.join();
  server->set("a", "1");
  EXPECT_EQ(client->get("a", kLong), "1");
}

TEST(TcpRendezvous, says_that_the_server_has_ended) {
  auto served = serve_board();
  const auto client = find_board(served.port);
  EXPECT_FALSE(client->ended());
  served.board.reset();
  for (int i = 0; i < 3; ++i)
    expect_error(ErrorKind::PeerLost,
                 HasSubstr(fmt::format("the board of the ranks at 127.0.0.1:{} is gone", served.port)),
                 [&] { client->set("a", "1"); });
  EXPECT_TRUE(client->ended());
}

TEST(TcpRendezvous, ends_when_its_clients_have_gone) {
  auto served = serve_tcp_rendezvous({.farewell = kLong});
  auto client = find_board(served.port);
  std::thread last([&] {
    // The board is still served, although its destructor is running.
    client->set("reason", "of rank 1");
    EXPECT_EQ(client->get("reason", kLong), "of rank 1");
    client.reset();
  });
  served.board.reset();
  last.join();
}

TEST(TcpRendezvous, says_that_the_server_was_killed) {
  const auto port = static_cast<uint16_t>(free_ports(1)[0]);
  const Child server([&] {
    const auto board = serve_board(port);
    while (true) ::pause();
  });
  const auto client = find_board(port);
  client->set("a", "1");
  server.kill();
  expect_error(ErrorKind::PeerLost, HasSubstr("is gone"), [&] {
    while (true) client->peek("a");
  });
  EXPECT_FALSE(client->ended());
}

TEST(TcpRendezvous, says_that_the_server_does_not_answer_and_goes_on_when_it_does) {
  const auto port = static_cast<uint16_t>(free_ports(1)[0]);
  const Child server([&] {
    const auto board = serve_board(port);
    while (true) ::pause();
  });
  const auto client = find_board(port);
  EXPECT_EQ(client->set_once("a", "1"), "1");
  server.stop();
  const auto fails = [&] {
    expect_error(
        ErrorKind::Timeout,
        HasSubstr(fmt::format("the board of the ranks at 127.0.0.1:{} has not answered for 5 s", port)),
        [&] { client->peek("a"); });
  };
  fails();
  fails();  // without waiting again
  server.go_on();
  EXPECT_EQ(client->set_once("a", "2"), "1");
  EXPECT_EQ(client->peek("b"), std::nullopt);
}

}  // namespace
}  // namespace tutti::comm::rendezvous_test

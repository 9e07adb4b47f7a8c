#include "tutti/comm/rendezvous.h"

#include <latch>
#include <set>
#include <sys/socket.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/file.h"
#include "tutti/base/net.h"
#include "tutti/base/ports.h"
#include "tutti/base/test_errors.h"
#include "tutti/comm/gloo/tcp_rendezvous.h"
#include "tutti/comm/test_messages.h"
#include "tutti/comm/test_network.h"

namespace tutti::comm {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using testing::as_ranks;
using testing::Child;
using testing::expect_no_errors;
using ::testing::HasSubstr;
using testing::kLong;

void expect_to_be_a_table(Rendezvous& table) {
  EXPECT_EQ(table.peek("a"), std::nullopt);
  table.set("a", "1");
  table.set("a", std::string("\0two\n", 5));
  EXPECT_EQ(table.peek("a"), std::string("\0two\n", 5));
  EXPECT_EQ(table.get("a", milliseconds(0)), std::string("\0two\n", 5));
  EXPECT_EQ(table.set_once("b", ""), "");
  EXPECT_EQ(table.set_once("b", "late"), "");
  EXPECT_EQ(table.get("b", kLong), "");
}

TEST(LocalRendezvous, is_a_table) { expect_to_be_a_table(*local_rendezvous()); }

TEST(LocalRendezvous, names_a_key_that_is_never_set) {
  expect_error(ErrorKind::Timeout, HasSubstr("nobody has set 'absent' for 0.03 s"),
               [] { local_rendezvous()->get("absent", milliseconds(30)); });
}

TEST(LocalRendezvous, prefixes_keep_keys_apart) {
  const auto table = local_rendezvous();
  const auto one = with_prefix(table, "one/");
  expect_to_be_a_table(*one);
  expect_to_be_a_table(*with_prefix(table, "two/"));
  EXPECT_EQ(table->peek("one/b"), "");
}

TEST(TcpRendezvous, is_a_table_for_all_its_clients) {
  const auto served = serve_tcp_rendezvous(kLong);
  expect_to_be_a_table(*served.table);
  const auto client = tcp_rendezvous("localhost", served.port, Serve::Elsewhere, kLong);
  EXPECT_EQ(client->get("b", kLong), "");
  expect_to_be_a_table(*with_prefix(client, "client/"));
  EXPECT_EQ(served.table->get("client/b", kLong), "");
}

TEST(TcpRendezvous, wakes_those_that_wait_while_others_ask) {
  const auto served = serve_tcp_rendezvous(kLong);
  expect_no_errors(as_ranks(4, [&](int rank) {
    const auto table = tcp_rendezvous("127.0.0.1", served.port, Serve::Elsewhere, kLong);
    const auto key = [](int r) { return fmt::format("key/{}", r); };
    std::thread waiting([&] { EXPECT_EQ(table->get(key((rank + 1) % 4), kLong), "here"); });
    EXPECT_EQ(table->peek("other"), std::nullopt);
    table->set(key(rank), "here");
    waiting.join();
  }));
}

TEST(TcpRendezvous, set_once_lets_one_of_many_win) {
  const auto served = serve_tcp_rendezvous(kLong);
  std::vector<std::string> winners(4);
  std::latch ready(4);
  expect_no_errors(as_ranks(4, [&](int rank) {
    const auto table = tcp_rendezvous("127.0.0.1", served.port, Serve::Elsewhere, kLong);
    ready.arrive_and_wait();
    winners[static_cast<size_t>(rank)] = table->set_once("winner", fmt::format("rank {}", rank));
  }));
  EXPECT_EQ(std::set(winners.begin(), winners.end()).size(), 1);
  EXPECT_EQ(served.table->peek("winner"), winners[0]);
}

TEST(TcpRendezvous, names_key_and_address_of_what_is_never_set) {
  const auto served = serve_tcp_rendezvous(kLong);
  const auto client = tcp_rendezvous("127.0.0.1", served.port, Serve::Elsewhere, kLong);
  expect_error(
      ErrorKind::Timeout,
      HasSubstr(fmt::format("nobody has set 'absent' in the table at 127.0.0.1:{} for 0.03 s", served.port)),
      [&] { client->get("absent", milliseconds(30)); });
}

TEST(TcpRendezvous, says_that_a_port_is_taken) {
  const auto served = serve_tcp_rendezvous(kLong);
  expect_error(ErrorKind::Overloaded, HasSubstr(fmt::format("port {} of this machine is taken", served.port)),
               [&] { tcp_rendezvous("127.0.0.1", served.port, Serve::Here, kLong); });
}

TEST(TcpRendezvous, says_what_to_check_where_nobody_answers) {
  const auto port = static_cast<uint16_t>(free_ports(1)[0]);
  expect_error(
      ErrorKind::Timeout,
      AllOf(HasSubstr(fmt::format("nobody answers at localhost:{} for 0.1 s (Connection refused)", port)),
            HasSubstr("Check that rank 0 is running")),
      [&] { tcp_rendezvous("localhost", port, Serve::Elsewhere, milliseconds(100)); });
  expect_error(ErrorKind::Timeout, HasSubstr("nobody answers at no-such-host.invalid:1"),
               [] { tcp_rendezvous("no-such-host.invalid", 1, Serve::Elsewhere, milliseconds(100)); });
}

FileDescriptor listen_somewhere(uint16_t& port) {
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  SocketAddress address = resolve("127.0.0.1", 0).addresses.at(0);
  EXPECT_EQ(bind(socket.get(), address.get(), address.size), 0);
  EXPECT_EQ(listen(socket.get(), 10), 0);
  EXPECT_EQ(getsockname(socket.get(), address.get(), &address.size), 0);
  port = static_cast<uint16_t>(port_of(address));
  return socket;
}

// Another program, or a rank 0 that has been stopped.
TEST(TcpRendezvous, does_not_wait_for_one_that_listens_and_never_answers) {
  uint16_t port = 0;
  const FileDescriptor silent = listen_somewhere(port);
  const auto begin = std::chrono::steady_clock::now();
  expect_error(ErrorKind::Timeout,
               HasSubstr(fmt::format("somebody listens at 127.0.0.1:{} but does not answer as rank 0's table "
                                     "does within 1 s: is rank 0 stopped, or the port another program's?",
                                     port)),
               [&] { tcp_rendezvous("127.0.0.1", port, Serve::Elsewhere, milliseconds(1000)); });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

TEST(TcpRendezvous, goes_round_all_names_of_the_host) {
  const auto served = serve_tcp_rendezvous(kLong);
  const FoundRendezvous found =
      find_tcp_rendezvous({"no-such-host.invalid", "127.0.0.1", "localhost"}, served.port, kLong);
  EXPECT_EQ(found.host, "127.0.0.1");
  served.table->set("a", "1");
  EXPECT_EQ(found.table->get("a", kLong), "1");
}

TEST(TcpRendezvous, waits_for_the_server_to_come) {
  const auto port = static_cast<uint16_t>(free_ports(1)[0]);
  std::shared_ptr<Rendezvous> client;
  std::thread early([&] { client = tcp_rendezvous("127.0.0.1", port, Serve::Elsewhere, kLong); });
  const auto server = tcp_rendezvous("127.0.0.1", port, Serve::Here, kLong);
  early.join();
  server->set("a", "1");
  EXPECT_EQ(client->get("a", kLong), "1");
}

TEST(TcpRendezvous, says_that_the_server_has_ended) {
  auto served = serve_tcp_rendezvous(kLong);
  const auto client = tcp_rendezvous("127.0.0.1", served.port, Serve::Elsewhere, kLong);
  served.table.reset();
  expect_error(ErrorKind::PeerLost,
               HasSubstr(fmt::format("the table of the ranks at 127.0.0.1:{} is gone", served.port)), [&] {
                 // The first write to a closed connection may still succeed.
                 for (int i = 0; i < 10; ++i) client->set("a", "1");
                 client->peek("a");
               });
}

TEST(TcpRendezvous, says_that_the_server_does_not_answer) {
  const auto port = static_cast<uint16_t>(free_ports(1)[0]);
  const Child server([&] {
    const auto table = tcp_rendezvous("127.0.0.1", port, Serve::Here, kLong);
    while (true) ::pause();
  });
  const auto client = tcp_rendezvous("127.0.0.1", port, Serve::Elsewhere, kLong);
  EXPECT_EQ(client->set_once("a", "1"), "1");
  server.stop();
  expect_error(
      ErrorKind::Timeout,
      HasSubstr(fmt::format("the table of the ranks at 127.0.0.1:{} has not answered for 5 s", port)),
      [&] { client->peek("a"); });
}

}  // namespace
}  // namespace tutti::comm

// Tests how a table of the ranks handles connections from processes that are not ranks.

#include <algorithm>
#include <array>
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
#include "tutti/base/net.h"
#include "tutti/base/ports.h"
#include "tutti/base/test_errors.h"
#include "tutti/base/this_host.h"
#include "tutti/comm/table/client.h"
#include "tutti/comm/table/protocol.h"
#include "tutti/comm/test_messages.h"
#include "tutti/comm/test_network.h"

namespace tutti::comm::table_test {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using testing::Child;
using testing::find_table;
using ::testing::HasSubstr;
using testing::kLong;
using testing::serve_table;

const std::string kOpening = table::opening("ranks");
const size_t kChallengeSize = kOpening.size() + kNonceSize;

class Stranger {
 public:
  explicit Stranger(int port)
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

TEST(Table, a_byte_that_is_held_open_keeps_nobody_waiting) {
  auto served = serve_tcp_rendezvous({.farewell = kLong});
  const auto port = served.port;
  const Stranger before(port);
  before.say(std::string(1, '\0'));
  auto client = find_table(port);
  const Stranger between(port);
  between.say(std::string(1, '\0'));
  client->set("a", "1");
  EXPECT_EQ(served.table->peek("a"), "1");
  client.reset();
  served.table.reset();  // waits only for ranks, not for strangers
}

TEST(Table, a_stranger_reads_and_writes_nothing) {
  const auto served = serve_tcp_rendezvous({.key = "secret"});
  served.table->set("job", "mine");
  for (const std::string& said :
       {table::encode({table::Verb::Set, "job", std::string(200, 'x')}), std::string(96, '0'),
        table::encode({table::Verb::Peek, "job", std::string(200, 'x')}),
        std::string("GET / HTTP/1.1\r\n\r\n"), std::string(1000, '\xff')}) {
    const Stranger stranger(served.port);
    stranger.say(said);
    shutdown(stranger.socket().get(), SHUT_WR);
    const std::string heard = stranger.hear();
    EXPECT_TRUE(heard.starts_with(kOpening)) << heard;
    EXPECT_LE(heard.size(), kChallengeSize + table::kVerdictSize);
  }
  EXPECT_EQ(served.table->peek("job"), "mine");
}

TEST(Table, nothing_that_a_stranger_gets_tells_of_the_key) {
  const auto served = serve_tcp_rendezvous({.key = "secret"});
  const auto of_stranger = [&] {
    const Stranger stranger(served.port);
    const std::string challenge = stranger.hear(kChallengeSize);
    stranger.say(std::string(table::kAnswerSize, '0'));
    return std::pair(challenge, stranger.hear());
  };
  const auto [one, verdict] = of_stranger();
  const auto [other, same] = of_stranger();
  EXPECT_NE(one, other);  // the nonce
  EXPECT_EQ(verdict, table::kRefusal + std::string(kProofSize, '-'));
  EXPECT_EQ(verdict, same);
}

TEST(Table, those_with_another_key_are_told_so) {
  std::promise<std::string> report;
  const auto served = serve_tcp_rendezvous(
      {.key = "one", .report = [&](const std::string& text) { report.set_value(text); }});
  expect_error(ErrorKind::InvalidArgument, HasSubstr("another job uses"),
               [&] { find_tcp_rendezvous({.hosts = {"127.0.0.1"}, .port = served.port, .key = "other"}); });
  const auto found = find_tcp_rendezvous({.hosts = {"127.0.0.1"}, .port = served.port, .key = "one"});
  found.table->set("a", "1");
  EXPECT_EQ(served.table->peek("a"), "1");
  EXPECT_THAT(report.get_future().get(),
              HasSubstr("refused a connection from 127.0.0.1: it belongs to another job"));
}

TEST(Table, is_not_found_by_those_for_whom_it_is_not) {
  const auto served = serve_tcp_rendezvous({.key = "secret", .purpose = "launchers"});
  const FindOptions options{
      .hosts = {"127.0.0.1"}, .port = served.port, .key = "secret", .timeout = milliseconds(1)};
  expect_error(ErrorKind::Timeout, HasSubstr("did not answer as the table"),
               [&] { find_tcp_rendezvous(options); });
  FindOptions right = options;
  right.purpose = "launchers";
  right.timeout = kLong;
  EXPECT_TRUE(try_tcp_rendezvous(right).found);
}

TEST(Table, quotes_what_a_stranger_sends_in_a_form_that_does_no_harm) {
  std::promise<std::string> report;
  const auto served =
      serve_tcp_rendezvous({.report = [&](const std::string& text) { report.set_value(text); }});
  const Stranger stranger(served.port);
  stranger.say("HELO\x1b[2J");
  EXPECT_THAT(report.get_future().get(), HasSubstr("it sent 'HELO?[2J'"));
}

// A process that listens in place of the table learns nothing that grants access, and clients reject it.
TEST(Table, a_server_without_the_key_is_refused) {
  const Listening listening = listen_at(resolve("127.0.0.1", 0).addresses.at(0));
  std::thread liar([&] {
    pollfd ready{listening.socket.get(), POLLIN, 0};
    poll(&ready, 1, -1);
    const FileDescriptor caller(accept(listening.socket.get(), nullptr, nullptr));
    const std::string said =
        kOpening + std::string(kNonceSize, '0') + table::kWelcome + std::string(kProofSize, '0');
    ::send(caller.get(), said.data(), said.size(), MSG_NOSIGNAL);
    std::array<char, 200> buffer;
    while (recv(caller.get(), buffer.data(), buffer.size(), 0) > 0) {
    }
  });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("another job uses"), [&] {
    find_tcp_rendezvous(
        {.hosts = {"127.0.0.1"}, .port = static_cast<uint16_t>(listening.port), .key = "secret"});
  });
  liar.join();
}

TEST(Table, a_client_that_sends_nonsense_is_disconnected_before_it_costs_memory) {
  const auto served = serve_tcp_rendezvous({.key = "secret"});
  for (const std::string& said : {std::string("s\xff\xff\xff\xff\xff\xff\xff\xff", 9), std::string("?"),
                                  std::string("p\0\0\0\0\1\0\0\1", 9)}) {
    const Stranger stranger(served.port);
    ASSERT_EQ(table::greet(stranger.socket(), "ranks", "secret", Clock::now() + kLong),
              table::Greeting::Done);
    stranger.say(said);
    EXPECT_EQ(stranger.hear(), "");
  }
}

TEST(Table, silent_strangers_keep_no_rank_out) {
  const auto served = serve_tcp_rendezvous({.key = "secret"});
  std::vector<std::unique_ptr<Stranger>> strangers;
  for (int i = 0; i < 200; ++i) strangers.push_back(std::make_unique<Stranger>(served.port));
  const auto found = find_tcp_rendezvous({.hosts = {"127.0.0.1"}, .port = served.port, .key = "secret"});
  found.table->set("a", "1");
  EXPECT_EQ(served.table->peek("a"), "1");
  // The oldest strangers were disconnected.
  EXPECT_LE(strangers.front()->hear().size(), kChallengeSize);
}

TEST(Table, does_with_few_descriptors) {
  const auto port = static_cast<uint16_t>(free_ports(1)[0]);
  const Child server([&] {
    const rlimit few{40, 40};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    const auto served = serve_table(port);
    while (true) ::pause();
  });
  find_table(port);
  std::vector<std::unique_ptr<Stranger>> strangers;
  for (int i = 0; i < 100; ++i) strangers.push_back(std::make_unique<Stranger>(port));
  const auto client = find_table(port);
  client->set("a", "1");
  EXPECT_EQ(client->get("a", kLong), "1");
}

// Returns an error number, or 0.
int connect_to(const std::string& host, int port) {
  return connect_within(resolve(host, port).addresses.at(0), kLong).error;
}

TEST(Table, listens_at_the_address_that_it_was_given_and_at_no_other) {
  const auto served = serve_table();
  EXPECT_EQ(connect_to("127.0.0.1", served.port), 0);
  EXPECT_EQ(connect_to("127.0.0.2", served.port), ECONNREFUSED);
  for (const std::string& host : own_addresses())
    EXPECT_EQ(connect_to(host, served.port), ECONNREFUSED) << host;
  const auto everywhere = serve_tcp_rendezvous({.hosts = {}});
  EXPECT_EQ(connect_to("127.0.0.2", everywhere.port), 0);
  for (const std::string& host : own_addresses()) EXPECT_EQ(connect_to(host, everywhere.port), 0) << host;
}

}  // namespace
}  // namespace tutti::comm::table_test

#include <algorithm>
#include <csignal>
#include <latch>
#include <set>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/test_errors.h"
#include "tutti/comm/failure_board.h"
#include "tutti/comm/gloo/gloo.h"
#include "tutti/comm/gloo/tcp_rendezvous.h"
#include "tutti/comm/rendezvous.h"
#include "tutti/comm/test_messages.h"
#include "tutti/comm/transport.h"

namespace tutti::comm {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using ::testing::AllOf;
using testing::exchange_and_look;
using ::testing::HasSubstr;
using testing::kLong;
using testing::meet;
using ::testing::Not;
using testing::operation;

std::vector<std::string> names(int world) {
  std::vector<std::string> who;
  for (int r = 0; r < world; ++r) who.push_back(fmt::format("worker/{} (host {})", r, r));
  return who;
}

// Runs body(rank) in a thread for each rank; returns what each has thrown, nothing where it has not.
using Outcome = std::optional<Error>;
std::vector<Outcome> as_ranks(int world, const std::function<void(int)>& body) {
  std::vector<Outcome> outcomes(static_cast<size_t>(world));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const Error& error) {
        outcomes[static_cast<size_t>(rank)] = error;
      } catch (const std::exception& error) {
        outcomes[static_cast<size_t>(rank)] = Error(ErrorKind::Bug, error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

void expect_no_errors(const std::vector<Outcome>& outcomes) {
  for (const Outcome& outcome : outcomes) EXPECT_FALSE(outcome) << outcome->what();
}

// A child process that runs `body` and is there until it is killed.
class Child {
 public:
  explicit Child(const std::function<void()>& body) : pid_(::fork()) {
    if (pid_ != 0) return;
    try {
      body();
    } catch (const std::exception& error) {
      fmt::print(stderr, "child: {}\n", error.what());
    }
    while (true) ::pause();
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  void kill() const { ::kill(pid_, SIGKILL); }
  // Returns when it has stopped.
  void stop() const {
    ::kill(pid_, SIGSTOP);
    ::waitpid(pid_, nullptr, WUNTRACED);
  }

 private:
  const pid_t pid_;
};

// --- tables

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
  uint16_t port = 0;
  { port = serve_tcp_rendezvous(kLong).port; }
  expect_error(
      ErrorKind::Timeout,
      AllOf(HasSubstr(fmt::format("nobody answers at localhost:{} for 0.1 s (Connection refused)", port)),
            HasSubstr("Check that rank 0 is running")),
      [&] { tcp_rendezvous("localhost", port, Serve::Elsewhere, milliseconds(100)); });
  expect_error(ErrorKind::Timeout, HasSubstr("nobody answers at no-such-host.invalid:1"),
               [] { tcp_rendezvous("no-such-host.invalid", 1, Serve::Elsewhere, milliseconds(100)); });
}

TEST(TcpRendezvous, waits_for_the_server_to_come) {
  uint16_t port = 0;
  { port = serve_tcp_rendezvous(kLong).port; }
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
  uint16_t port = 0;
  { port = serve_tcp_rendezvous(kLong).port; }
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

// --- failing together

TEST(RollCall, gives_the_words_of_all) {
  const auto table = local_rendezvous();
  expect_no_errors(as_ranks(3, [&](int rank) {
    EXPECT_EQ(roll_call(*table, {.rank = rank, .world = 3}, fmt::format("I am {}", rank), kLong),
              (std::vector<std::string>{"I am 0", "I am 1", "I am 2"}));
  }));
}

TEST(RollCall, names_all_who_have_not_come) {
  expect_error(
      ErrorKind::Timeout, HasSubstr("nothing from worker/0 (host 0), worker/2 (host 2) for 0.05 s"),
      [] { roll_call(*local_rendezvous(), {.rank = 1, .world = 3, .who = names(3)}, "", milliseconds(50)); });
}

// Boards of ranks that wait without a network: until they are told to give up.
class BoardRank {
 public:
  BoardRank(const std::shared_ptr<Rendezvous>& table, int rank, int world)
      : board(table,
              {.rank = rank,
               .world = world,
               .who = names(world),
               .look_up = milliseconds(10),
               .last_words = milliseconds(20)},
              [this] { given_up_.count_down(); }) {}

  void wait_in_vain(const Operation& operation, FailureBoard::Party party, std::vector<int> peers) {
    const auto watch = board.watch(operation, party, std::move(peers));
    given_up_.wait();
    board.throw_if_failed();
  }

 private:
  std::latch given_up_{1};

 public:
  FailureBoard board;  // last: it calls what is above
};

void await_key(Rendezvous& table, const std::string& key) { table.get(key, kLong); }

TEST(FailureBoard, names_who_has_not_come_and_what_it_did_last) {
  const auto table = local_rendezvous();
  const auto outcomes = as_ranks(3, [&](int rank) {
    BoardRank self(table, rank, 3);
    { const auto done = self.board.watch(operation("barrier", kLong, 117), FailureBoard::Party::All, {}); }
    if (rank == 2) {
      // Is there, but busy with something else.
      await_key(*table, "failure");
      return;
    }
    await_key(*table, "last/2");
    self.wait_in_vain(operation("all_reduce", milliseconds(300), 118), FailureBoard::Party::All,
                      {1 - rank, 2});
  });
  EXPECT_FALSE(outcomes[2]);
  ASSERT_TRUE(outcomes[0] && outcomes[1]);
  EXPECT_EQ(outcomes[0]->kind(), ErrorKind::Timeout);
  EXPECT_STREQ(outcomes[0]->what(),
               "all_reduce at step 118 failed: nothing from worker/2 (host 2) for 0.3 s, it was last seen in "
               "barrier at step "
               "117. Raise --timeout, or look at what it is doing");
  EXPECT_STREQ(outcomes[0]->what(), outcomes[1]->what());
}

TEST(FailureBoard, says_that_a_rank_has_not_done_anything) {
  BoardRank self(local_rendezvous(), 0, 2);
  expect_error(ErrorKind::Timeout,
               HasSubstr("nothing from worker/1 (host 1) for 0.05 s, it has not done anything yet"), [&] {
                 self.wait_in_vain(operation("barrier", milliseconds(50)), FailureBoard::Party::All, {1});
               });
}

TEST(FailureBoard, says_what_a_rank_waits_for_elsewhere) {
  const auto table = local_rendezvous();
  const auto outcomes = as_ranks(2, [&](int rank) {
    BoardRank self(table, rank, 2);
    if (rank == 1) {
      self.wait_in_vain(operation("recv"), FailureBoard::Party::Two, {0});
    } else {
      await_key(*table, "last/1");
      self.wait_in_vain(operation("barrier", milliseconds(50)), FailureBoard::Party::All, {1});
    }
  });
  ASSERT_TRUE(outcomes[0] && outcomes[1]);
  EXPECT_THAT(outcomes[0]->what(), HasSubstr("nothing from worker/1 (host 1) for 0.05 s, it waits in recv"));
  EXPECT_STREQ(outcomes[0]->what(), outcomes[1]->what());
}

TEST(FailureBoard, does_not_name_those_who_have_come) {
  BoardRank self(local_rendezvous(), 0, 3);
  expect_error(ErrorKind::Timeout, AllOf(HasSubstr("worker/2"), Not(HasSubstr("worker/1"))), [&] {
    auto watch = self.board.watch(operation("barrier", milliseconds(50)), FailureBoard::Party::All, {1, 2});
    watch.arrived(1);
    self.wait_in_vain(operation("later"), FailureBoard::Party::Two, {1});
  });
}

TEST(FailureBoard, the_first_failure_is_everybodys_from_then_on) {
  const auto table = local_rendezvous();
  BoardRank first(table, 0, 2);
  BoardRank second(table, 1, 2);
  const std::string text = error_of(ErrorKind::PeerLost, [&] {
    const auto watch = first.board.watch(operation("all_reduce"), FailureBoard::Party::All, {1});
    first.board.lost(watch, 1, "");
  });
  EXPECT_EQ(
      text,
      "all_reduce failed: worker/1 (host 1) is gone; it has not done anything yet. Its own output says why");
  expect_error(ErrorKind::PeerLost, text, [&] { second.board.report(ErrorKind::Timeout, "something else"); });
  for (BoardRank* rank : {&first, &second})
    expect_error(ErrorKind::PeerLost, text,
                 [&] { rank->board.watch(operation("next"), FailureBoard::Party::All, {}); });
}

TEST(FailureBoard, fails_where_the_table_is_gone) {
  auto served = serve_tcp_rendezvous(kLong);
  BoardRank self(tcp_rendezvous("127.0.0.1", served.port, Serve::Elsewhere, kLong), 1, 2);
  served.table.reset();
  expect_error(ErrorKind::PeerLost,
               AllOf(HasSubstr("barrier failed: the table of the ranks"), HasSubstr("rank 0 of the job")),
               [&] { self.wait_in_vain(operation("barrier"), FailureBoard::Party::All, {0}); });
}

// --- Gloo

std::unique_ptr<Transport> gloo(const std::shared_ptr<Rendezvous>& table, int rank, int world,
                                milliseconds timeout = kLong) {
  return gloo_transport(table, {.rank = rank, .world = world, .who = names(world), .timeout = timeout});
}

class GlooWorlds : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Network, GlooWorlds, ::testing::Values(1, 2, 3, 4));

TEST_P(GlooWorlds, exchange_moves_messages_of_any_size) {
  const auto table = local_rendezvous();
  expect_no_errors(as_ranks(GetParam(), [&](int rank) {
    const auto transport = gloo(table, rank, GetParam());
    testing::exchange_messages_of_any_size(*transport);
  }));
}

TEST_P(GlooWorlds, messages_between_two_keep_their_order_beside_exchanges) {
  const auto table = local_rendezvous();
  expect_no_errors(as_ranks(GetParam(), [&](int rank) {
    const auto transport = gloo(table, rank, GetParam());
    testing::send_and_recv_beside_exchanges(*transport);
  }));
}

TEST(Gloo, two_transports_do_not_mix) {
  const auto table = local_rendezvous();
  expect_no_errors(as_ranks(2, [&](int rank) {
    const auto one = gloo(with_prefix(table, "one/"), rank, 2);
    const auto two = gloo(with_prefix(table, "two/"), rank, 2);
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

TEST(Gloo, splits_into_smaller_groups) {
  const auto table = local_rendezvous();
  expect_no_errors(as_ranks(4, [&](int rank) {
    const auto all = gloo(table, rank, 4);
    const std::vector<int> ranks = rank % 2 == 0 ? std::vector{2, 0} : std::vector{1, 3};
    const auto half = all->split(ranks, fmt::format("half/{}", rank % 2));
    ASSERT_EQ(half->world(), 2);
    EXPECT_EQ(ranks[static_cast<size_t>(half->rank())], rank);
    meet(*half, operation("exchange"));
    meet(*all, operation("exchange"));
  }));
}

TEST(Gloo, finds_the_address_of_a_named_host) {
  const auto table = local_rendezvous();
  expect_no_errors(as_ranks(2, [&](int rank) {
    const auto transport = gloo_transport(table, {.rank = rank, .world = 2, .peer_host = "localhost"});
    meet(*transport, operation("exchange"));
  }));
  expect_error(ErrorKind::InvalidArgument, HasSubstr("host 'no-such-host.invalid' is not known here"), [&] {
    gloo_transport(local_rendezvous(), {.rank = 0, .world = 2, .peer_host = "no-such-host.invalid"});
  });
}

TEST(Gloo, names_the_rank_that_never_comes) {
  const auto table = local_rendezvous();
  const auto begin = Clock::now();
  const auto outcomes = as_ranks(2, [&](int rank) { gloo(table, rank, 3, milliseconds(300)); });
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome);
    EXPECT_EQ(outcome->kind(), ErrorKind::Timeout);
    EXPECT_THAT(outcome->what(), HasSubstr("connect failed: nothing from worker/2 (host 2) for 0.3 s"));
  }
}

// Rank 2 does something else while the others wait for it; when it comes, it hears of what has happened.
TEST(Gloo, names_the_rank_that_is_late_and_tells_it) {
  const auto table = local_rendezvous();
  std::latch over(2);
  const auto begin = Clock::now();
  const auto outcomes = as_ranks(3, [&](int rank) {
    const auto transport = gloo(table, rank, 3);
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

TEST(Gloo, names_the_rank_that_has_left_and_stays_broken) {
  const auto table = local_rendezvous();
  const auto outcomes = as_ranks(3, [&](int rank) {
    const auto transport = gloo(table, rank, 3);
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

// Rank 0 waits for rank 1 alone, which has no connection that breaks, and hears of rank 2 all the same.
TEST(Gloo, a_failure_reaches_those_that_wait_for_somebody_else) {
  const auto table = local_rendezvous();
  std::latch both_wait(2);
  const auto outcomes = as_ranks(3, [&](int rank) {
    const auto transport = gloo(table, rank, 3);
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

TEST(Gloo, a_process_that_is_killed_is_noticed_at_once) {
  uint16_t port = 0;
  { port = serve_tcp_rendezvous(kLong).port; }
  const auto as_rank = [&](int rank) {
    auto table = tcp_rendezvous("127.0.0.1", port, Serve::Elsewhere, kLong);
    auto transport = gloo(table, rank, 3);
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
  const auto server = tcp_rendezvous("127.0.0.1", port, Serve::Here, kLong);
  const auto transport = as_rank(0);
  const auto begin = Clock::now();
  two.kill();
  // The child may not have been through the barrier yet.
  expect_error(ErrorKind::PeerLost, HasSubstr("failed: worker/2 (host 2) is gone"),
               [&] { meet(*transport, operation("all_reduce")); });
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
}

TEST(Gloo, says_that_the_rank_with_the_table_is_gone) {
  uint16_t port = 0;
  { port = serve_tcp_rendezvous(kLong).port; }
  const Child zero([&] {
    const auto server = tcp_rendezvous("127.0.0.1", port, Serve::Here, kLong);
    const auto transport = gloo(server, 0, 2);
    meet(*transport, operation("barrier"));
    while (true) ::pause();
  });
  const auto table = tcp_rendezvous("127.0.0.1", port, Serve::Elsewhere, kLong);
  const auto transport = gloo(table, 1, 2);
  meet(*transport, operation("barrier"));
  zero.kill();
  expect_error(ErrorKind::PeerLost, HasSubstr("all_reduce failed: worker/0 (host 0) is gone"),
               [&] { meet(*transport, operation("all_reduce")); });
}

TEST(Gloo, a_process_that_is_stopped_is_named_when_the_time_is_over) {
  uint16_t port = 0;
  { port = serve_tcp_rendezvous(kLong).port; }
  const Child one([&] {
    const auto transport = gloo(tcp_rendezvous("127.0.0.1", port, Serve::Elsewhere, kLong), 1, 2);
    meet(*transport, operation("barrier", kLong, 117));
    while (true) ::pause();
  });
  const auto table = tcp_rendezvous("127.0.0.1", port, Serve::Here, kLong);
  const auto transport = gloo(table, 0, 2);
  meet(*transport, operation("barrier", kLong, 117));
  one.stop();
  expect_error(ErrorKind::Timeout,
               HasSubstr("all_reduce at step 118 failed: nothing from worker/1 (host 1) for 0.5 s"),
               [&] { meet(*transport, operation("all_reduce", milliseconds(500), 118)); });
}

}  // namespace
}  // namespace tutti::comm

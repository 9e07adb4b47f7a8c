#include "tutti/transport/failures.h"

#include <latch>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/ports.h"
#include "tutti/base/test_errors.h"
#include "tutti/transport/test_messages.h"
#include "tutti/transport/test_network.h"

namespace tutti::comm::failures_test {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using testing::as_ranks;
using testing::expect_no_errors;
using ::testing::HasSubstr;
using testing::kLong;
using testing::names;
using ::testing::Not;
using testing::operation;

TEST(RollCall, gives_the_words_of_all) {
  const auto board = std::make_shared<LocalRendezvous>();
  expect_no_errors(as_ranks(3, [&](int rank) {
    EXPECT_EQ(roll_call(*board, {.rank = rank, .world = 3}, fmt::format("I am {}", rank), kLong),
              (std::vector<std::string>{"I am 0", "I am 1", "I am 2"}));
  }));
}

TEST(RollCall, names_all_who_have_not_come) {
  expect_error(ErrorKind::Timeout, HasSubstr("nothing from worker/0 (host 0), worker/2 (host 2) for 0.05 s"),
               [] {
                 roll_call(*std::make_shared<LocalRendezvous>(), {.rank = 1, .world = 3, .who = names(3)}, "",
                           milliseconds(50));
               });
}

// The failures of a rank that waits without a network, until it is told to give up.
class BoardRank {
 public:
  BoardRank(const std::shared_ptr<Rendezvous>& board, int rank, int world)
      : failures(board,
                 {.rank = rank,
                  .world = world,
                  .who = names(world),
                  .holder = names(world)[0],
                  .look_up = milliseconds(10),
                  .between_reports = milliseconds(20)},
                 [this] { given_up_.count_down(); }) {}

  void wait_in_vain(const Operation& operation, Failures::Party party, std::vector<int> peers) {
    const auto watch = failures.watch(operation, party, std::move(peers));
    given_up_.wait();
    failures.throw_if_failed();
  }

 private:
  std::latch given_up_{1};

 public:
  Failures failures;  // last: it uses the members above
};

void await_key(Rendezvous& board, const std::string& key) { board.get(key, kLong); }

TEST(Failures, names_who_has_not_come_and_what_it_did_last) {
  const auto board = std::make_shared<LocalRendezvous>();
  const auto outcomes = as_ranks(3, [&](int rank) {
    BoardRank self(board, rank, 3);
    { const auto done = self.failures.watch(operation("barrier", kLong, 117), Failures::Party::All, {}); }
    if (rank == 2) {
      // Rank 2 is there, but busy with something else.
      await_key(*board, "failure");
      return;
    }
    await_key(*board, "last/2");
    self.wait_in_vain(operation("all_reduce", milliseconds(300), 118), Failures::Party::All, {1 - rank, 2});
  });
  EXPECT_FALSE(outcomes[2]);
  ASSERT_TRUE(outcomes[0] && outcomes[1]);
  EXPECT_EQ(outcomes[0]->kind(), ErrorKind::Timeout);
  EXPECT_STREQ(outcomes[0]->what(),
               "all_reduce at step 118 failed: nothing from worker/2 (host 2) for 0.3 s, its last reported "
               "operation was barrier at step 117, which it completed. Look at what it is doing and at the "
               "network, or raise --timeout");
  EXPECT_STREQ(outcomes[0]->what(), outcomes[1]->what());
}

TEST(Failures, says_that_a_rank_has_not_done_anything) {
  BoardRank self(std::make_shared<LocalRendezvous>(), 0, 2);
  expect_error(ErrorKind::Timeout,
               HasSubstr("nothing from worker/1 (host 1) for 0.05 s, it has not reported any operation"),
               [&] { self.wait_in_vain(operation("barrier", milliseconds(50)), Failures::Party::All, {1}); });
}

TEST(Failures, says_what_a_rank_waits_for_elsewhere) {
  const auto board = std::make_shared<LocalRendezvous>();
  const auto outcomes = as_ranks(2, [&](int rank) {
    BoardRank self(board, rank, 2);
    if (rank == 1) {
      self.wait_in_vain(operation("recv"), Failures::Party::Two, {0});
    } else {
      await_key(*board, "last/1");
      self.wait_in_vain(operation("barrier", milliseconds(50)), Failures::Party::All, {1});
    }
  });
  ASSERT_TRUE(outcomes[0] && outcomes[1]);
  EXPECT_THAT(outcomes[0]->what(), HasSubstr("nothing from worker/1 (host 1) for 0.05 s, it waits in recv"));
  EXPECT_STREQ(outcomes[0]->what(), outcomes[1]->what());
}

// Rank 2 needs something only from rank 0, which waits for rank 1 itself.
TEST(Failures, names_the_rank_that_another_waits_for) {
  const auto board = std::make_shared<LocalRendezvous>();
  const auto outcomes = as_ranks(3, [&](int rank) {
    BoardRank self(board, rank, 3);
    if (rank == 1) return await_key(*board, "failure");
    if (rank == 2) await_key(*board, "last/0");
    self.wait_in_vain(operation("all_reduce", rank == 2 ? milliseconds(100) : kLong, 118),
                      Failures::Party::All, {rank == 0 ? 1 : 0});
  });
  ASSERT_TRUE(outcomes[2]);
  EXPECT_THAT(outcomes[2]->what(), AllOf(HasSubstr("nothing from worker/1 (host 1) for 0.1 s, it has not"),
                                         Not(HasSubstr("worker/0"))));
}

TEST(Failures, does_not_name_those_who_have_come) {
  BoardRank self(std::make_shared<LocalRendezvous>(), 0, 3);
  expect_error(ErrorKind::Timeout, AllOf(HasSubstr("worker/2"), Not(HasSubstr("worker/1"))), [&] {
    auto watch = self.failures.watch(operation("barrier", milliseconds(50)), Failures::Party::All, {1, 2});
    watch.arrived(1);
    self.wait_in_vain(operation("later"), Failures::Party::Two, {1});
  });
}

TEST(Failures, the_first_failure_is_everybodys_from_then_on) {
  const auto board = std::make_shared<LocalRendezvous>();
  BoardRank first(board, 0, 2);
  BoardRank second(board, 1, 2);
  const std::string text = error_of(ErrorKind::PeerLost, [&] {
    const auto watch = first.failures.watch(operation("all_reduce"), Failures::Party::All, {1});
    first.failures.lost(watch, 1, "");
  });
  EXPECT_EQ(
      text,
      "all_reduce failed: worker/1 (host 1) is gone; it has not reported any operation yet. Its own output "
      "says why. A rank may also skip this call if it is inside a condition such as `if (ctx.is_chief())`");
  expect_error(ErrorKind::PeerLost, text,
               [&] { second.failures.report(ErrorKind::Timeout, "something else"); });
  for (BoardRank* rank : {&first, &second})
    expect_error(ErrorKind::PeerLost, text,
                 [&] { rank->failures.watch(operation("next"), Failures::Party::All, {}); });
}

TEST(Failures, foreign_entries_in_the_board_are_a_failure) {
  for (const char* text : {"", "all went wrong", "-1 x", "99999999999999999999 x", "7", "77 x"}) {
    const auto board = std::make_shared<LocalRendezvous>();
    BoardRank self(board, 0, 2);
    board->set("failure", text);
    expect_error(ErrorKind::DataLoss,
                 HasSubstr(fmt::format("a failure that Tutti did not write: '{}'", text)),
                 [&] { self.wait_in_vain(operation("barrier"), Failures::Party::All, {1}); });
  }
}

TEST(Failures, words_that_are_not_tuttis_say_nothing) {
  for (const char* text : {"", "W", "W ", "what?", "W many barrier", "D 99999999999999999999 barrier"}) {
    const auto board = std::make_shared<LocalRendezvous>();
    BoardRank self(board, 0, 2);
    board->set("last/1", text);
    expect_error(ErrorKind::Timeout, HasSubstr("it has not reported any operation yet"), [&] {
      self.wait_in_vain(operation("barrier", milliseconds(50)), Failures::Party::All, {1});
    });
  }
}

TEST(Failures, fails_where_the_board_is_gone) {
  const auto port = static_cast<uint16_t>(free_ports(1)[0]);
  const testing::Child holder([&] {
    const auto served = testing::serve_board(port);
    while (true) ::pause();
  });
  BoardRank self(testing::find_board(port), 1, 2);
  holder.kill();
  expect_error(ErrorKind::PeerLost,
               AllOf(HasSubstr("barrier failed: the board of the ranks"), HasSubstr("rank 0 of the job")),
               [&] { self.wait_in_vain(operation("barrier"), Failures::Party::All, {0}); });
}

// Rank 0 has finished and left, while this rank still waits for a third.
TEST(Failures, does_without_a_board_that_has_ended_in_good_order) {
  auto served = testing::serve_board();
  const auto board = testing::find_board(served.port);
  BoardRank self(board, 1, 3);
  served.board.reset();
  expect_error(ErrorKind::Timeout, HasSubstr("barrier failed: nothing from worker/2 (host 2) for 1 s"), [&] {
    self.wait_in_vain(operation("barrier", milliseconds(1000)), Failures::Party::All, {2});
  });
  EXPECT_TRUE(board->ended());
}

TEST(Failures, names_the_rank_with_the_board_where_that_is_silent) {
  const auto port = static_cast<uint16_t>(free_ports(1)[0]);
  const testing::Child holder([&] {
    const auto served = testing::serve_board(port);
    while (true) ::pause();
  });
  BoardRank self(testing::find_board(port), 1, 3);
  holder.stop();
  expect_error(
      ErrorKind::Timeout,
      AllOf(HasSubstr("barrier failed: it did not finish within 0.3 s, and worker/0 (host 0), which holds"),
            Not(HasSubstr("worker/2"))),
      [&] { self.wait_in_vain(operation("barrier", milliseconds(300)), Failures::Party::All, {2}); });
}

}  // namespace
}  // namespace tutti::comm::failures_test

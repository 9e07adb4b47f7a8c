#include "tutti/transport/members.h"

#include <future>

#include <gmock/gmock.h>

#include "tutti/base/test_errors.h"
#include "tutti/comm/collectives.h"
#include "tutti/transport/inproc/inproc.h"
#include "tutti/transport/member_epochs.h"

namespace tutti::comm {
namespace {

using ::testing::HasSubstr;

constexpr std::chrono::milliseconds kLong{60'000};

class MembersOnABoard : public ::testing::Test {
 protected:
  void publish(const Members& members) { comm::publish(*board_, members); }
  Call last_call_of(const Member& member) { return call_of(*board_->peek(call_key(member))); }

  const std::shared_ptr<LocalRendezvous> board_ = std::make_shared<LocalRendezvous>();
};

TEST(Members, are_the_same_after_their_way_over_the_board) {
  const Members members{.epoch = 7, .by_rank = {{2, 0}, {0, 3}}, .is_last = true};
  const Members again = members_of(to_text(members));
  EXPECT_EQ(again.epoch, 7U);
  EXPECT_EQ(again.by_rank, members.by_rank);
  EXPECT_TRUE(again.is_last);
  EXPECT_EQ(again.rank_of({0, 3}), 1);
  EXPECT_EQ(again.rank_of({0, 2}), std::nullopt);
  const Call call = call_of(to_text(Call{3, Call::Why::Late, "nothing from \xff"}));
  EXPECT_EQ(call.epoch, 3U);
  EXPECT_EQ(call.why, Call::Why::Late);
  EXPECT_THAT(call.text, HasSubstr("nothing from"));
}

TEST(Members, that_were_not_written_by_a_launcher_are_refused) {
  for (const char* text : {"", "[]", "{}", R"({"epoch": 1})", R"({"epoch": -1, "members": []})",
                           R"({"epoch": 1, "members": []})", R"({"epoch": 1, "members": [3]})",
                           R"({"epoch": 1, "members": [{"worker": -1, "life": 0}]})",
                           R"({"epoch": 1, "members": [{"worker": 1, "life": 0}], "end": "why"})"})
    expect_error(ErrorKind::DataLoss, HasSubstr(""), [&] { members_of(text); });
  for (const char* text : {"", "{}", R"({"epoch": 1, "why": "tired", "text": ""})"})
    expect_error(ErrorKind::DataLoss, HasSubstr(""), [&] { call_of(text); });
  for (const char* text : {"", "{}", R"({"who": "a"})", R"({"who": "a", "lines": [1]})"})
    expect_error(ErrorKind::DataLoss, HasSubstr(""), [&] { facts_of(text); });
}

TEST_F(MembersOnABoard, are_awaited_and_the_newest_counts) {
  publish({.epoch = 0, .by_rank = {{0, 0}, {1, 0}, {2, 0}}});
  const MembersBoard list(board_, {1, 0});
  auto next = std::async(std::launch::async, [&] { return list.await_next({0, Call::Why::Lost, "gone"}); });
  board_->get(call_key({1, 0}), kLong);
  EXPECT_EQ(last_call_of({1, 0}).text, "gone");
  board_->set(members_key(1), to_text(Members{.epoch = 1, .by_rank = {{1, 0}, {2, 0}}}));
  publish({.epoch = 2, .by_rank = {{1, 0}}});
  EXPECT_EQ(next.get().epoch, 2U);
}

TEST_F(MembersOnABoard, do_not_take_back_one_that_was_replaced) {
  publish({.epoch = 1, .by_rank = {{0, 0}, {1, 1}}});
  const MembersBoard list(board_, {1, 0});
  expect_error(ErrorKind::PeerLost, HasSubstr("the others go on without this worker"), [&] {
    list.await_next({0, Call::Why::Lost, ""});
  });
}

TEST_F(MembersOnABoard, take_in_one_that_joins_when_it_is_listed) {
  publish({.epoch = 1, .by_rank = {{0, 0}}});
  const MembersBoard list(board_, {1, 1});
  auto next = std::async(std::launch::async, [&] { return list.await_next({0, Call::Why::Joins, ""}); });
  board_->get(call_key({1, 1}), kLong);
  publish({.epoch = 2, .by_rank = {{0, 0}, {1, 1}}});
  EXPECT_EQ(next.get().rank_of({1, 1}), 1);
}

TEST_F(MembersOnABoard, hear_why_the_job_ends) {
  publish({.epoch = 1, .by_rank = {}, .end = "worker/1 has ended already"});
  const MembersBoard list(board_, {0, 0});
  expect_error(ErrorKind::PeerLost, HasSubstr("gone; the job ends: worker/1 has ended already"), [&] {
    list.await_next({0, Call::Why::Lost, "gone"});
  });
}

TEST_F(MembersOnABoard, that_connect_notice_that_their_epoch_has_ended) {
  EpochBoard epoch(board_, 3);
  epoch.set("there", "yes");
  EXPECT_EQ(board_->peek("epoch/3/there"), "yes");
  EXPECT_EQ(epoch.get("there", kLong), "yes");
  auto missing = std::async(std::launch::async, [&] { return epoch.get("missing", kLong); });
  publish({.epoch = 4, .by_rank = {{0, 0}}});
  expect_error(ErrorKind::PeerLost, HasSubstr("epoch 3 have changed"), [&] { missing.get(); });
  EXPECT_EQ(epoch.peek("there"), "yes");
  epoch.connected();
  EXPECT_EQ(epoch.peek("missing"), std::nullopt);
}

TEST_F(MembersOnABoard, say_who_is_gone_has_left_and_has_come) {
  const MemberEpochs::Connect connect = [](const Members&, const std::shared_ptr<EpochBoard>&) {};
  publish({.epoch = 0, .by_rank = {{0, 0}, {1, 0}, {2, 0}}});
  MemberEpochs epochs(MembersBoard(board_, {0, 0}));
  epochs.enter_first(connect);
  EXPECT_EQ(epochs.change(), "");
  publish({.epoch = 1, .by_rank = {{0, 0}, {2, 0}}});
  epochs.enter_next(Error(ErrorKind::PeerLost, "gone"), connect);
  EXPECT_EQ(epochs.change(), "worker/1 is gone");
  publish({.epoch = 2, .by_rank = {{0, 0}, {1, 1}}});
  epochs.enter_next({}, connect);
  EXPECT_EQ(epochs.change(), "worker/2 has left, worker/1 has come");

  MemberEpochs joining(MembersBoard(board_, {1, 1}));
  joining.enter_next({}, connect);
  EXPECT_EQ(joining.change(), "") << "it does not know who was there before";
}

TEST_F(MembersOnABoard, tell_facts_before_the_fit_and_with_the_call_for_a_place) {
  publish({.epoch = 0, .by_rank = {{0, 0}}});
  const MembersBoard member(board_, {0, 0});
  const Agreement facts{"worker/0", {"--batch 2", "tutti \xff"}};
  member.set_facts(facts);
  member.set_fit(1);
  EXPECT_EQ(member.fit(), 1);
  const Agreement told = facts_of(*board_->peek(kFactsKey));
  EXPECT_EQ(told.who, facts.who);
  EXPECT_EQ(told.lines.at(0), facts.lines[0]);

  const MembersBoard joiner(board_, {1, 1});
  joiner.set_facts({"worker/1", {"--batch 3"}});
  auto joins = std::async(std::launch::async, [&] { MemberEpochs(joiner).enter_next({}, {}); });
  board_->get(call_key({1, 1}), kLong);
  EXPECT_EQ(facts_of(last_call_of({1, 1}).facts).lines, std::vector<std::string>{"--batch 3"});
  board_->set(refused_key({1, 1}), "worker/0 has '--batch 2'");
  expect_error(ErrorKind::InvalidArgument, HasSubstr("go on without it: worker/0 has '--batch 2'"),
               [&] { joins.get(); });
}

// The job ends instead of the next epoch.
class LastEpoch final : public EpochSource {
 public:
  Connection next(const std::optional<Error>& /*why*/) override {
    fail(ErrorKind::PeerLost, "the job ends: worker/1 has failed");
  }
  uint64_t number() const override { return 0; }
  bool is_joining() const override { return false; }
  bool change_is_due() override { return true; }
  int least() const override { return 1; }
  bool is_last() const override { return false; }
  std::string change() const override { return ""; }
  bool job_stops() const override { return false; }
  void set_fit(int64_t /*fit*/) override {}
  std::optional<int64_t> fit() const override { return std::nullopt; }
};

TEST(Communicator, without_a_next_epoch_fails_and_can_be_abandoned) {
  for (const bool is_planned : {true, false}) {
    SCOPED_TRACE(is_planned);
    const std::optional<Error> why =
        is_planned ? std::nullopt : std::optional(Error(ErrorKind::PeerLost, "worker/1 is gone"));
    Collectives ranks(std::make_unique<Ranks>(std::move(inproc_transports(2, kLong).front()), kLong, nullptr,
                                              nullptr, nullptr, std::make_unique<LastEpoch>()));
    expect_error(ErrorKind::PeerLost, HasSubstr("worker/1 has failed"), [&] { ranks.reconfigure(why); });
    ranks.abandon("the run ends");
    expect_error(ErrorKind::PeerLost,
                 HasSubstr(is_planned ? "the ranks did not meet again" : "worker/1 is gone"),
                 [&] { ranks.barrier({}); });
  }
}

}  // namespace
}  // namespace tutti::comm

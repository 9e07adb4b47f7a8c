#include "tools/launch/members_keeper.h"

#include <gmock/gmock.h>

namespace tutti::members_keeper_test {
namespace {

using comm::Call;
using comm::Member;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Then = MembersKeeper::Then;

constexpr seconds kTimeout{60};

// A keeper with a clock that stands still unless the test moves it.
class Keeper : public testing::Test {
 protected:
  Keeper() { keeper_.training_has_begun(); }
  void call(const Member& member, Call::Why why, uint64_t epoch) {
    keeper_.called(member, {.epoch = epoch, .why = why}, now_);
    keeper_.tick(now_);
  }
  void ask_for_a_place(const Member& member) { call(member, Call::Why::Joins, 0); }
  void lose(int worker, Then then = Then::StaysAway) {
    keeper_.lost(worker, then);
    keeper_.tick(now_);
  }
  void pass(milliseconds time) {
    now_ += time;
    keeper_.tick(now_);
  }
  const comm::Members& newest() const { return keeper_.epochs().back(); }
  uint64_t epoch() const { return newest().epoch; }
  std::string end() const { return newest().end; }

  MembersKeeper keeper_{3, 2, kTimeout};
  MembersKeeper::Time now_ = {};
};

TEST_F(Keeper, begins_with_all_workers_in_their_first_lives) {
  keeper_.tick(now_);
  ASSERT_EQ(keeper_.epochs().size(), 1U);
  EXPECT_EQ(epoch(), 0U);
  EXPECT_THAT(newest().by_rank, ElementsAre(Member{0, 0}, Member{1, 0}, Member{2, 0}));
  EXPECT_FALSE(keeper_.is_changing());
}

TEST_F(Keeper, goes_on_at_once_with_the_members_that_are_left) {
  lose(0);
  EXPECT_EQ(epoch(), 1U);
  EXPECT_THAT(newest().by_rank, ElementsAre(Member{1, 0}, Member{2, 0}));
  EXPECT_FALSE(keeper_.is_changing());
}

TEST_F(Keeper, takes_in_a_worker_that_was_to_stay_away_and_comes_back_after_all) {
  lose(1);
  EXPECT_FALSE(keeper_.returns(0));
  EXPECT_TRUE(keeper_.returns(1));
  EXPECT_FALSE(keeper_.returns(1));
  ask_for_a_place({1, 1});
  for (const int worker : {0, 2}) call({worker, 0}, Call::Why::Change, 1);
  EXPECT_THAT(newest().by_rank, ElementsAre(Member{0, 0}, Member{2, 0}, Member{1, 1}));
  keeper_.finish("the training is over");
  lose(2);
  EXPECT_FALSE(keeper_.returns(2));
}

TEST_F(Keeper, begins_with_some_of_the_workers_and_takes_in_others_when_they_are_started) {
  MembersKeeper keeper(4, 1, kTimeout, {}, 2);
  keeper.training_has_begun();
  EXPECT_THAT(keeper.epochs().back().by_rank, ElementsAre(Member{0, 0}, Member{1, 0}));
  EXPECT_EQ(keeper.started(), 2);
  keeper.called({3, 0}, {.why = Call::Why::Joins}, now_);
  EXPECT_FALSE(keeper.is_changing()) << "nobody has started this worker";
  EXPECT_TRUE(keeper.returns(3));
  keeper.called({3, 1}, {.why = Call::Why::Joins}, now_);
  for (const int worker : {0, 1}) keeper.called({worker, 0}, {.epoch = 0, .why = Call::Why::Change}, now_);
  keeper.tick(now_);
  EXPECT_THAT(keeper.epochs().back().by_rank, ElementsAre(Member{0, 0}, Member{1, 0}, Member{3, 1}));
  EXPECT_EQ(keeper.started(), 3);
  EXPECT_FALSE(keeper.has_run_before(0));
  EXPECT_FALSE(keeper.has_run_before(3));
  keeper.lost(3, Then::ComesBack);
  EXPECT_TRUE(keeper.has_run_before(3));
}

TEST_F(Keeper, gives_a_worker_that_comes_back_a_rank_beside_its_host) {
  MembersKeeper keeper(4, 1, kTimeout, {0, 0, 1, 1});
  keeper.training_has_begun();
  keeper.lost(0, Then::ComesBack);
  keeper.tick(now_);
  keeper.called({0, 1}, {.why = Call::Why::Joins}, now_);
  for (const int worker : {1, 2, 3}) keeper.called({worker, 0}, {.epoch = 1, .why = Call::Why::Change}, now_);
  keeper.tick(now_);
  EXPECT_THAT(keeper.epochs().back().by_rank,
              ElementsAre(Member{1, 0}, Member{0, 1}, Member{2, 0}, Member{3, 0}));
}

TEST_F(Keeper, makes_one_epoch_of_losses_at_the_same_time) {
  MembersKeeper keeper(4, 1, kTimeout);
  keeper.lost(3, Then::StaysAway);
  keeper.lost(1, Then::StaysAway);
  keeper.tick(now_);
  ASSERT_EQ(keeper.epochs().size(), 2U);
  EXPECT_THAT(keeper.epochs()[1].by_rank, ElementsAre(Member{0, 0}, Member{2, 0}));
}

TEST_F(Keeper, begins_a_last_epoch_if_fewer_than_min_are_left_and_nobody_comes_back) {
  lose(0);
  EXPECT_FALSE(keeper_.has_too_few());
  lose(2);
  EXPECT_EQ(epoch(), 2U);
  EXPECT_TRUE(keeper_.has_too_few());
  EXPECT_TRUE(keeper_.finished());
  EXPECT_FALSE(keeper_.ended());
  EXPECT_THAT(keeper_.why_over(), HasSubstr("1 of 3 workers is left, fewer than --min 2"));
  EXPECT_THAT(newest().by_rank, ElementsAre(Member{1, 0}));
  EXPECT_TRUE(newest().is_last);
  lose(1);
  EXPECT_EQ(epoch(), 3U);
  EXPECT_TRUE(keeper_.ended());
  EXPECT_THAT(end(), HasSubstr("1 of 3 workers is left, fewer than --min 2"));
  EXPECT_THAT(newest().by_rank, IsEmpty());
}

TEST_F(Keeper, waits_below_min_for_a_worker_that_comes_back) {
  lose(0);
  lose(2, Then::ComesBack);
  EXPECT_EQ(epoch(), 1U);
  EXPECT_TRUE(keeper_.is_changing());
  call({1, 0}, Call::Why::Lost, 1);
  pass(2 * kTimeout);
  EXPECT_EQ(epoch(), 1U);
  EXPECT_THAT(keeper_.take_evicted(), IsEmpty());
  ask_for_a_place({2, 1});
  EXPECT_EQ(epoch(), 2U);
  EXPECT_THAT(newest().by_rank, ElementsAre(Member{1, 0}, Member{2, 1}));
}

TEST_F(Keeper, ends_if_a_worker_that_min_needs_is_lost_before_it_is_back) {
  lose(0);
  lose(2, Then::ComesBack);
  lose(2, Then::StaysAway);
  EXPECT_TRUE(keeper_.has_too_few());
}

TEST_F(Keeper, ends_if_nobody_is_left_who_knows_the_state) {
  MembersKeeper keeper(2, 1, kTimeout);
  keeper.training_has_begun();
  keeper.lost(0, Then::ComesBack);
  keeper.lost(1, Then::ComesBack);
  keeper.called({0, 1}, {.why = Call::Why::Joins}, now_);
  keeper.tick(now_);
  EXPECT_THAT(keeper.epochs().back().end, HasSubstr("none of the workers that trained is left"));
}

TEST_F(Keeper, lets_a_worker_join_when_all_members_have_left_their_step) {
  lose(1, Then::ComesBack);
  EXPECT_EQ(keeper_.wanted_change(), std::nullopt);
  ask_for_a_place({1, 1});
  EXPECT_EQ(keeper_.wanted_change(), 1U);
  EXPECT_TRUE(keeper_.is_changing());
  call({0, 0}, Call::Why::Change, 1);
  EXPECT_EQ(epoch(), 1U);
  call({2, 0}, Call::Why::Change, 1);
  EXPECT_EQ(epoch(), 2U);
  EXPECT_THAT(newest().by_rank, ElementsAre(Member{0, 0}, Member{2, 0}, Member{1, 1}));
  EXPECT_EQ(keeper_.wanted_change(), std::nullopt);
  EXPECT_FALSE(keeper_.is_changing());
}

TEST_F(Keeper, appends_workers_that_have_asked_for_a_place_when_another_one_is_lost) {
  lose(0, Then::ComesBack);
  ask_for_a_place({0, 1});
  lose(1);
  EXPECT_EQ(epoch(), 2U);
  EXPECT_THAT(newest().by_rank, ElementsAre(Member{2, 0}, Member{0, 1}));
}

TEST_F(Keeper, wants_no_change_for_a_worker_that_is_lost_before_it_joins) {
  lose(0, Then::ComesBack);
  ask_for_a_place({0, 1});
  lose(0);
  EXPECT_EQ(keeper_.wanted_change(), std::nullopt);
  EXPECT_EQ(epoch(), 1U);
}

TEST_F(Keeper, gives_nobody_a_place_before_the_training_has_begun) {
  MembersKeeper keeper(4, 2, kTimeout);
  keeper.lost(3, Then::ComesBack);
  keeper.tick(now_);
  keeper.called({3, 1}, {.why = Call::Why::Joins}, now_);
  keeper.lost(2, Then::StaysAway);
  keeper.tick(now_);
  EXPECT_THAT(keeper.epochs().back().by_rank, ElementsAre(Member{0, 0}, Member{1, 0}));
  EXPECT_EQ(keeper.wanted_change(), std::nullopt);
  EXPECT_FALSE(keeper.is_changing());
  keeper.training_has_begun();
  EXPECT_EQ(keeper.wanted_change(), 2U);
  keeper.lost(1, Then::StaysAway);
  keeper.tick(now_);
  EXPECT_THAT(keeper.epochs().back().by_rank, ElementsAre(Member{0, 0}, Member{3, 1}));
}

// Those who are left would wait for it, and it for their training.
TEST_F(Keeper, ends_if_fewer_than_min_are_left_before_the_training) {
  MembersKeeper keeper(2, 2, kTimeout);
  keeper.lost(1, Then::ComesBack);
  keeper.tick(now_);
  EXPECT_TRUE(keeper.ended());
}

TEST_F(Keeper, counts_the_lives_of_a_worker) {
  lose(1, Then::ComesBack);
  lose(1, Then::ComesBack);
  EXPECT_EQ(keeper_.life_of(1), 2);
  ask_for_a_place({1, 1});
  EXPECT_EQ(keeper_.wanted_change(), std::nullopt) << "its second life has ended";
  ask_for_a_place({1, 2});
  EXPECT_EQ(keeper_.wanted_change(), 1U);
}

TEST_F(Keeper, goes_on_with_the_same_members_if_all_have_lost_one_another) {
  for (const int worker : {2, 0}) call({worker, 0}, Call::Why::Lost, 0);
  EXPECT_EQ(epoch(), 0U);
  EXPECT_TRUE(keeper_.is_changing());
  call({1, 0}, Call::Why::Late, 0);
  EXPECT_EQ(epoch(), 1U);
  EXPECT_THAT(newest().by_rank, ElementsAre(Member{0, 0}, Member{1, 0}, Member{2, 0}));
}

TEST_F(Keeper, evicts_after_the_timeout_who_does_not_call_when_others_are_lost) {
  call({0, 0}, Call::Why::Lost, 0);
  pass(kTimeout / 2);
  call({2, 0}, Call::Why::Lost, 0);
  pass(kTimeout / 2 - milliseconds(1));
  EXPECT_THAT(keeper_.take_evicted(), IsEmpty());
  pass(milliseconds(1));
  EXPECT_THAT(keeper_.take_evicted(), ElementsAre(Member{1, 0}));
  EXPECT_TRUE(keeper_.is_evicted(1));
  EXPECT_EQ(epoch(), 0U) << "its death is awaited";
  pass(kTimeout);
  EXPECT_THAT(keeper_.take_evicted(), IsEmpty());
  lose(1);
  EXPECT_FALSE(keeper_.is_evicted(1));
  EXPECT_THAT(newest().by_rank, ElementsAre(Member{0, 0}, Member{2, 0}));
}

TEST_F(Keeper, evicts_after_a_second_who_is_late) {
  call({0, 0}, Call::Why::Late, 0);
  pass(milliseconds(999));
  EXPECT_THAT(keeper_.take_evicted(), IsEmpty());
  pass(milliseconds(1));
  EXPECT_THAT(keeper_.take_evicted(), ElementsAre(Member{1, 0}, Member{2, 0}));
}

TEST_F(Keeper, evicts_who_does_not_leave_its_step_for_a_change) {
  lose(1, Then::ComesBack);
  ask_for_a_place({1, 1});
  call({0, 0}, Call::Why::Change, 1);
  pass(kTimeout);
  EXPECT_THAT(keeper_.take_evicted(), ElementsAre(Member{2, 0}));
}

TEST_F(Keeper, leaves_out_an_evicted_member_whose_death_is_not_known_yet) {
  MembersKeeper keeper(4, 2, kTimeout);
  keeper.called({0, 0}, {.why = Call::Why::Late}, now_);
  keeper.called({1, 0}, {.why = Call::Why::Late}, now_);
  keeper.called({2, 0}, {.why = Call::Why::Late}, now_);
  keeper.tick(now_ + seconds(1));
  EXPECT_THAT(keeper.take_evicted(), ElementsAre(Member{3, 0}));
  keeper.lost(1, Then::StaysAway);
  keeper.tick(now_ + seconds(1));
  EXPECT_THAT(keeper.epochs().back().by_rank, ElementsAre(Member{0, 0}, Member{2, 0}));
  EXPECT_FALSE(keeper.is_member(3));
  keeper.lost(3, Then::StaysAway);
  keeper.tick(now_ + seconds(1));
  EXPECT_EQ(keeper.epochs().size(), 2U) << "it was no member any more";
}

TEST_F(Keeper, ignores_calls_of_another_epoch_or_life) {
  lose(2);
  call({0, 0}, Call::Why::Lost, 0);
  call({1, 0}, Call::Why::Late, 2);
  call({1, 1}, Call::Why::Lost, 1);
  call({2, 0}, Call::Why::Lost, 1);
  call({2, 0}, Call::Why::Joins, 1);
  call({7, 0}, Call::Why::Lost, 1);
  EXPECT_FALSE(keeper_.is_changing());
  pass(2 * kTimeout);
  EXPECT_EQ(epoch(), 1U);
  EXPECT_THAT(keeper_.take_evicted(), IsEmpty());
}

TEST_F(Keeper, a_call_that_is_repeated_does_not_prolong_the_time) {
  call({0, 0}, Call::Why::Lost, 0);
  pass(kTimeout / 2);
  call({0, 0}, Call::Why::Lost, 0);
  pass(kTimeout / 2);
  EXPECT_EQ(keeper_.take_evicted().size(), 2U);
}

TEST_F(Keeper, begins_no_epoch_after_a_member_has_ended_well) {
  keeper_.ended_well(1);
  keeper_.tick(now_);
  EXPECT_EQ(epoch(), 0U) << "the others may end as well";
  EXPECT_TRUE(keeper_.finished());
  lose(2);
  EXPECT_EQ(end(), "worker/1 has ended already");
}

TEST_F(Keeper, tells_those_who_call_or_ask_for_a_place_that_a_member_has_ended) {
  lose(2, Then::ComesBack);
  ask_for_a_place({2, 1});
  keeper_.ended_well(0);
  EXPECT_EQ(keeper_.wanted_change(), std::nullopt);
  keeper_.tick(now_);
  EXPECT_EQ(end(), "worker/0 has ended already");

  MembersKeeper other(3, 1, kTimeout);
  other.ended_well(0);
  other.called({1, 0}, {.why = Call::Why::Lost}, now_);
  other.tick(now_);
  EXPECT_TRUE(other.ended());
}

TEST_F(Keeper, a_worker_that_ends_well_without_having_joined_is_only_gone) {
  lose(2, Then::ComesBack);
  keeper_.ended_well(2);
  keeper_.tick(now_);
  EXPECT_FALSE(keeper_.finished());
  EXPECT_EQ(epoch(), 1U);
  lose(1);
  EXPECT_TRUE(keeper_.has_too_few());
}

TEST_F(Keeper, tells_the_first_reason_of_the_end) {
  keeper_.finish("worker/0 ended with exit code 3");
  keeper_.finish("another reason");
  lose(0);
  EXPECT_EQ(end(), "worker/0 ended with exit code 3");
  lose(1);
  EXPECT_EQ(epoch(), 1U) << "nothing follows the end";
}

}  // namespace
}  // namespace tutti::members_keeper_test

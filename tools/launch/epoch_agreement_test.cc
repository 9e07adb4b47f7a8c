#include "tools/launch/epoch_agreement.h"

#include <gtest/gtest.h>

namespace tutti::epoch_agreement_test {
namespace {

// Three hosts with two workers each; the first launcher keeps the list.
const std::vector<int> kHosts = {0, 0, 1, 1, 2, 2};

EpochDecision first_epoch() {
  EpochDecision first{.launchers = {"a", "b", "c"}};
  for (int worker = 0; worker < 6; ++worker) first.members.by_rank.push_back({worker, 0});
  return first;
}

EpochVote vote_of(size_t host, uint64_t term = 0) {
  return {.host = host, .token = first_epoch().launchers[host], .term = term, .chosen = first_epoch()};
}

comm::Members without_host(int host) {
  comm::Members members{.epoch = 1};
  for (const comm::Member& member : first_epoch().members.by_rank) {
    if (kHosts[static_cast<size_t>(member.worker)] != host) members.by_rank.push_back(member);
  }
  return members;
}

TEST(EpochDecisions, need_more_than_half_of_the_members_or_half_with_the_keeper) {
  EpochDecision decision = first_epoch();
  EXPECT_TRUE(decision.is_enough({{1, "b"}, {2, "c"}}, kHosts));
  EXPECT_FALSE(decision.is_enough({{0, "a"}}, kHosts));
  decision.members.by_rank.pop_back();
  decision.members.by_rank.pop_back();
  EXPECT_TRUE(decision.is_enough({{0, "a"}}, kHosts));
  EXPECT_FALSE(decision.is_enough({{1, "b"}}, kHosts));
  EXPECT_FALSE(decision.is_enough({{1, "b"}, {2, "c"}}, kHosts));
}

TEST(EpochDecisions, do_not_count_a_launcher_that_was_started_again) {
  EXPECT_FALSE(first_epoch().is_enough({{1, "another"}, {2, "c"}}, kHosts));
  EXPECT_FALSE(first_epoch().is_enough({{1, ""}, {2, "c"}}, kHosts));
}

TEST(EpochVoters, obey_no_earlier_term) {
  EpochVoter voter(vote_of(1));
  EXPECT_TRUE(voter.promise(2));
  EXPECT_FALSE(voter.promise(1));
  const EpochDecision next{.members = without_host(2), .launchers = {"a", "b", ""}};
  EXPECT_FALSE(voter.accept({.term = 1, .base = first_epoch(), .next = next}));
  EXPECT_FALSE(voter.vote().accepted);
  EXPECT_TRUE(voter.accept({.term = 2, .base = first_epoch(), .next = next}));
  EXPECT_EQ(voter.vote().accepted->next.members.by_rank, next.members.by_rank);
}

TEST(EpochVoters, learn_what_was_chosen_without_them) {
  EpochVoter voter(vote_of(1));
  const EpochDecision next{.members = without_host(2), .launchers = {"a", "b", ""}};
  EXPECT_TRUE(voter.accept({.term = 0, .base = first_epoch(), .next = next, .is_chosen = true}));
  EXPECT_EQ(voter.vote().chosen.members.epoch, 1U);
  EXPECT_FALSE(voter.vote().accepted);
}

TEST(EpochAgreements, begin_an_epoch_when_enough_launchers_have_accepted_it) {
  EpochAgreement keeper(vote_of(0), kHosts);
  const EpochProposal proposal = keeper.propose(without_host(2), {"a", "b", ""});
  EXPECT_FALSE(keeper.take_chosen());
  keeper.hear(vote_of(1));  // it has not seen the proposal
  EXPECT_FALSE(keeper.take_chosen());
  EpochVoter other(vote_of(1));
  other.accept(proposal);
  keeper.hear(other.vote());
  EXPECT_TRUE(keeper.take_chosen()->is_chosen);
  EXPECT_EQ(keeper.chosen().members.by_rank, without_host(2).by_rank);
  EXPECT_TRUE(keeper.can_go_on({"a", "", ""}));
  EXPECT_FALSE(keeper.can_go_on({"", "b", ""}));
}

TEST(EpochAgreements, of_another_keeper_propose_what_may_have_begun) {
  EpochAgreement keeper(vote_of(0), kHosts);
  EpochVoter accepts(vote_of(1));
  accepts.accept(keeper.propose(without_host(2), {"a", "b", ""}));
  EpochVoter other(vote_of(2));
  for (EpochVoter* voter : {&accepts, &other}) voter->promise(2);
  EpochAgreement next(other.vote(), kHosts);
  EXPECT_FALSE(next.is_elected());
  next.hear(accepts.vote());
  EXPECT_TRUE(next.is_elected());
  EXPECT_EQ(next.unfinished()->members.by_rank, without_host(2).by_rank);
  EXPECT_EQ(next.unfinished()->keeper, 0U);
}

TEST(EpochAgreements, need_nobody_if_there_is_nobody) {
  EpochAgreement alone;
  EXPECT_TRUE(alone.is_elected());
  alone.propose(without_host(2), {});
  EXPECT_TRUE(alone.take_chosen());
  EXPECT_TRUE(alone.can_go_on({}));
}

}  // namespace
}  // namespace tutti::epoch_agreement_test

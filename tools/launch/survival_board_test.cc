#include "tools/launch/survival_board.h"

#include <csignal>

#include <gmock/gmock.h>

#include "tutti/base/test_errors.h"

namespace tutti::survival_board_test {
namespace {

using What = WorkerOrder::What;

TEST(SurvivalBoard, messages_arrive_as_they_were_sent) {
  const EndedWorker ended{
      .worker = 5, .outcome = Outcome(SIGKILL), .text = "worker/5 (pid 7) \"was\" killed", .seconds = 1.5};
  EXPECT_EQ(ended_worker_of(to_text(ended)), ended);
  const HostOrders orders{
      .orders = {{.what = What::Start, .worker = 4, .life = 2, .pause = std::chrono::seconds(8)},
                 {.what = What::Kill, .worker = 5, .life = 1},
                 {.what = What::Fail, .worker = 4}},
      .job_is_done = true,
      .is_lost = true,
      .restarts = 3,
      .away = {2},
      .end = JobEnd{.exit_code = 3,
                    .signal = SIGTERM,
                    .grace = std::chrono::milliseconds(2000),
                    .interrupted = true,
                    .restarts = 2}};
  EXPECT_EQ(host_orders_of(to_text(orders)), orders);
  EXPECT_EQ(host_orders_of(to_text(HostOrders())), HostOrders());
  EXPECT_EQ(lives_of(to_text(std::vector<int>{0, 3})), (std::vector<int>{0, 3}));
}

TEST(SurvivalBoard, votes_arrive_as_they_were_sent) {
  const HostStanding standing{
      .workers = {{3, false}, {0, true}}, .job_is_done = true, .restarts = 2, .away = {1, 4}};
  EXPECT_EQ(host_standing_of(to_text(standing)), standing);
  const EpochDecision base{
      .members = {.epoch = 4, .by_rank = {{1, 2}, {0, 0}}}, .keeper = 1, .launchers = {"a", ""}};
  const EpochProposal proposal{.term = 9, .base = base, .next = base, .is_chosen = true};
  const std::string text = to_text(EpochVote{1, "b", 9, base, proposal});
  const EpochVote vote = epoch_vote_of(text);
  EXPECT_EQ(to_text(vote), text);
  EXPECT_EQ(vote.token, "b");
  EXPECT_EQ(vote.chosen.members.by_rank, base.members.by_rank);
  EXPECT_EQ(vote.accepted->next.launchers, base.launchers);
  EXPECT_EQ(to_text(epoch_proposal_of(to_text(proposal))), to_text(proposal));
}

TEST(SurvivalBoard, tokens_have_the_address_of_the_board) {
  const Address address{"10.0.0.7", 4001};
  EXPECT_EQ(board_address_in(launcher_token(address)), address);
  EXPECT_NE(launcher_token(address), launcher_token(address));
  EXPECT_EQ(board_address_in(""), std::nullopt);
}

TEST(SurvivalBoard, damaged_messages_are_refused) {
  const std::string unknown_order =
      R"({"orders": [[7, 0, 0, 0]], "done": true, "lost": false, "restarts": 0, "end": null})";
  for (const std::string& text : {std::string(), std::string("{"), std::string("[]"), std::string("{}"),
                                  std::string(R"({"orders": 1})"), unknown_order}) {
    error_of(ErrorKind::DataLoss, [&] { host_orders_of(text); });
    error_of(ErrorKind::DataLoss, [&] { ended_worker_of(text); });
  }
  error_of(ErrorKind::DataLoss, [] { lives_of("[1, \"x\"]"); });
}

}  // namespace
}  // namespace tutti::survival_board_test

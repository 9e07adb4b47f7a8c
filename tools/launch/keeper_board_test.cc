#include "tools/launch/keeper_board.h"

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include <gmock/gmock.h>

#include "tutti/transport/members.h"

namespace tutti::keeper_board_test {
namespace {

using comm::Call;
using comm::Member;

// Three workers, of which the last one is lost and is started again.
class KeeperBoardOfThree : public ::testing::Test {
 protected:
  KeeperBoardOfThree() {
    keeper_.lost(2, MembersKeeper::Then::ComesBack);
    look();
  }
  void look() { at_board_.look(MembersKeeper::Time()); }
  void begin_training() {
    const comm::MembersBoard member(board_, {0, 0});
    member.set_facts({"worker/0", {"--batch 2"}});
    member.set_fit(0);
  }
  void ask(const std::string& flag) {
    const std::string facts = comm::to_text(Agreement{"worker/2", {flag}});
    board_->set(comm::call_key(kJoiner), comm::to_text(Call{.why = Call::Why::Joins, .facts = facts}));
    look();
  }
  bool is_awaited() const { return keeper_.wanted_change().has_value(); }
  std::string why_refused() const { return board_->peek(comm::refused_key(kJoiner)).value_or(""); }

  static constexpr Member kJoiner{2, 1};
  const std::shared_ptr<comm::LocalRendezvous> board_ = std::make_shared<comm::LocalRendezvous>();
  MembersKeeper keeper_{3, 1, std::chrono::milliseconds(1000)};
  KeeperBoard at_board_{keeper_, board_};
};

TEST_F(KeeperBoardOfThree, takes_in_a_worker_with_the_same_facts_or_without_any) {
  begin_training();
  ask("--batch 2");
  EXPECT_TRUE(is_awaited());
  EXPECT_EQ(why_refused(), "");
  keeper_.lost(2, MembersKeeper::Then::ComesBack);
  board_->set(comm::call_key({2, 2}), comm::to_text(Call{.why = Call::Why::Joins}));
  look();
  EXPECT_TRUE(is_awaited());
}

TEST_F(KeeperBoardOfThree, refuses_a_worker_with_other_facts) {
  begin_training();
  ask("--batch 3");
  EXPECT_FALSE(is_awaited());
  EXPECT_EQ(why_refused(), "worker/0 has '--batch 2', worker/2 has '--batch 3'");
}

TEST_F(KeeperBoardOfThree, refuses_a_worker_that_has_asked_before_the_training) {
  ask("--batch 3");
  EXPECT_EQ(why_refused(), "");
  begin_training();
  look();
  EXPECT_FALSE(is_awaited());
  EXPECT_EQ(why_refused(), "worker/0 has '--batch 2', worker/2 has '--batch 3'");
}

}  // namespace
}  // namespace tutti::keeper_board_test

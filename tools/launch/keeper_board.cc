#include "tools/launch/keeper_board.h"

#include <utility>

#include "tutti/base/error.h"

namespace tutti {

KeeperBoard::KeeperBoard(MembersKeeper& keeper, std::shared_ptr<comm::Rendezvous> board)
    : keeper_(keeper), board_(std::move(board)) {
  publish();
}

void KeeperBoard::look(MembersKeeper::Time now) {
  read_calls(now);
  keeper_.tick(now);
  publish();
}

void KeeperBoard::read_calls(MembersKeeper::Time now) {
  if (board_->peek(comm::kFitKey)) keeper_.training_has_begun();
  for (const comm::Member& member : keeper_.possible_callers()) {
    const std::string key = comm::call_key(member);
    const auto text = board_->peek(key);
    if (!text || read_[key] == *text) continue;
    keeper_.called(member, comm::call_of(*text), now);
    read_[key] = *text;
  }
}

void KeeperBoard::publish() {
  for (; published_ < keeper_.epochs().size(); ++published_) {
    const comm::Members& epoch = keeper_.epochs()[published_];
    board_->set(comm::members_key(epoch.epoch), comm::to_text(epoch));
    for (const comm::Member& member : epoch.by_rank) {
      if (published_ > 0 && !keeper_.epochs()[published_ - 1].rank_of(member)) joined_.push_back(member);
    }
  }
  const auto change = keeper_.wanted_change();
  if (change == std::exchange(published_change_, change)) return;
  board_->set(comm::kChangeKey, change ? std::to_string(*change) : "");
}

std::vector<comm::Member> KeeperBoard::take_joined() { return std::exchange(joined_, {}); }

bool may_lose(const MembersKeeper& keeper, int worker, const Outcome& outcome) {
  if (outcome.killed() || outcome.interrupted()) return true;
  const int code = outcome.exit_code();
  const bool misses_others = code == exit_code(ErrorKind::PeerLost) || code == exit_code(ErrorKind::Timeout);
  return misses_others && (!keeper.trained_last(worker) || keeper.is_evicted(worker));
}

}  // namespace tutti

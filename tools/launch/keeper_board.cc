#include "tools/launch/keeper_board.h"

#include <utility>

#include <fmt/format.h>

#include "tools/launch/survival_board.h"
#include "tutti/base/agreement.h"
#include "tutti/base/error.h"

namespace tutti {

KeeperBoard::KeeperBoard(MembersKeeper& keeper, std::shared_ptr<comm::Rendezvous> board,
                         EpochAgreement agreement)
    : keeper_(keeper), board_(std::move(board)), agreement_(std::move(agreement)) {
  if (const auto unfinished = agreement_.unfinished()) {
    board_->set(kProposalKey, to_text(agreement_.propose(*unfinished)));
  } else {
    publish(keeper_.epochs().front());
  }
}

void KeeperBoard::look(MembersKeeper::Time now, const std::vector<std::string>& launchers) {
  read_calls(now);
  read_votes();
  settle();
  if (!is_open()) {
    keeper_.tick(now);
    propose(launchers);
    settle();
  }
  if (is_open()) give_up_if_too_few(launchers);
  publish_change();
}

void KeeperBoard::give_up_if_too_few(const std::vector<std::string>& launchers) {
  if (agreement_.can_go_on(launchers) || keeper_.ended()) return;
  keeper_.give_up(fmt::format("only the launchers of {} can be reached, and the others may go on",
                              agreement_.describe(launchers)));
  agreement_.withdraw();
  has_given_up_ = true;
  // Workers that still read this board may belong to those who go on: it does not tell them of the end.
  published_ = keeper_.epochs().size();
}

// Reads the votes only while they matter.
void KeeperBoard::read_votes() {
  if (!is_open()) return;
  for (size_t host = 0; host < agreement_.chosen().launchers.size(); ++host) {
    if (const auto text = board_->peek(vote_key(host))) agreement_.hear(epoch_vote_of(*text));
  }
}

// The end of the job needs no agreement.
void KeeperBoard::propose(const std::vector<std::string>& launchers) {
  if (published_ == keeper_.epochs().size()) return;
  const comm::Members& next = keeper_.epochs()[published_];
  if (!next.end.empty()) return publish(next);
  board_->set(kProposalKey, to_text(agreement_.propose(next, launchers)));
}

void KeeperBoard::settle() {
  const auto chosen = agreement_.take_chosen();
  if (!chosen) return;
  board_->set(kProposalKey, to_text(*chosen));
  publish(chosen->next.members);
}

void KeeperBoard::read_calls(MembersKeeper::Time now) {
  const bool has_begun = board_->peek(comm::kFitKey).has_value();
  for (const comm::Member& member : keeper_.possible_callers()) {
    const std::string key = comm::call_key(member);
    const auto text = board_->peek(key);
    if (!text || read_[key] == *text) continue;
    const comm::Call call = comm::call_of(*text);
    keeper_.called(member, call, now);
    if (call.why == comm::Call::Why::Joins && !call.facts.empty()) askers_.emplace_back(member, call.facts);
    read_[key] = *text;
  }
  if (!has_begun) return;
  refuse_misfits();
  keeper_.training_has_begun();
}

// Nobody gets a place before the members have told their facts.
void KeeperBoard::refuse_misfits() {
  for (const auto& [member, facts] : std::exchange(askers_, {})) {
    const auto common = board_->peek(comm::kFactsKey);
    const std::string why = common ? difference(comm::facts_of(*common), comm::facts_of(facts)) : "";
    if (why.empty()) continue;
    keeper_.refused(member);
    board_->set(comm::refused_key(member), why);
  }
}

void KeeperBoard::publish(const comm::Members& epoch) {
  comm::publish(*board_, epoch);
  for (const comm::Member& member : epoch.by_rank) {
    if (published_ > 0 && !keeper_.epochs()[published_ - 1].rank_of(member)) joined_.push_back(member);
  }
  ++published_;
}

void KeeperBoard::publish_change() {
  const auto change = is_open() ? std::nullopt : keeper_.wanted_change();
  if (change == std::exchange(published_change_, change)) return;
  board_->set(comm::kChangeKey, change ? std::to_string(*change) : "");
}

std::vector<comm::Member> KeeperBoard::take_joined() { return std::exchange(joined_, {}); }

bool misses_others(const Outcome& outcome) {
  const int code = outcome.exit_code();
  return code == exit_code(ErrorKind::PeerLost) || code == exit_code(ErrorKind::Timeout);
}

bool may_lose(const MembersKeeper& keeper, int worker, const Outcome& outcome) {
  if (outcome.killed() || outcome.interrupted()) return true;
  return misses_others(outcome) && (!keeper.trained_last(worker) || keeper.is_evicted(worker));
}

}  // namespace tutti

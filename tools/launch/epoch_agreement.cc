#include "tools/launch/epoch_agreement.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace tutti {
namespace {

using ByHost = std::map<size_t, std::string>;

ByHost by_host(const std::vector<std::string>& launchers) {
  ByHost present;
  for (size_t host = 0; host < launchers.size(); ++host) {
    if (!launchers[host].empty()) present[host] = launchers[host];
  }
  return present;
}

}  // namespace

bool EpochDecision::admits(size_t host, const std::string& token) const {
  return host < launchers.size() && launchers[host] == token;
}

int EpochDecision::votes(const ByHost& present, const std::vector<int>& host_of_worker) const {
  return static_cast<int>(
      std::count_if(members.by_rank.begin(), members.by_rank.end(), [&](const comm::Member& member) {
        const auto host = static_cast<size_t>(host_of_worker.at(static_cast<size_t>(member.worker)));
        const auto found = present.find(host);
        return found != present.end() && admits(host, found->second);
      }));
}

bool EpochDecision::is_enough(const ByHost& present, const std::vector<int>& host_of_worker) const {
  const int twice = 2 * votes(present, host_of_worker);
  const auto all = static_cast<int>(members.by_rank.size());
  const auto found = present.find(keeper);
  return twice > all || (twice == all && found != present.end() && admits(keeper, found->second));
}

bool EpochVoter::promise(uint64_t term) {
  if (term < vote_.term) return false;
  vote_.term = term;
  return true;
}

bool EpochVoter::accept(const EpochProposal& proposal) {
  if (!promise(proposal.term)) return false;
  const uint64_t known = vote_.chosen.members.epoch;
  const EpochDecision& newest = proposal.is_chosen ? proposal.next : proposal.base;
  const bool learns = newest.members.epoch > known;
  if (learns) {
    vote_.chosen = newest;
    vote_.accepted.reset();
  }
  if (proposal.is_chosen || proposal.next.members.epoch != vote_.chosen.members.epoch + 1) return learns;
  if (vote_.accepted && vote_.accepted->term == proposal.term) return learns;
  vote_.accepted = proposal;
  return true;
}

EpochAgreement::EpochAgreement(const EpochVote& own, std::vector<int> host_of_worker)
    : term_(own.term), own_(own.host), host_of_worker_(std::move(host_of_worker)), chosen_(own.chosen) {
  votes_[own_] = own;
}

void EpochAgreement::hear(const EpochVote& vote) {
  if (vote.term != term_ || vote.host == own_) return;
  votes_[vote.host] = vote;
  if (!open_ && vote.chosen.members.epoch > chosen_.members.epoch) chosen_ = vote.chosen;
}

std::string EpochAgreement::token_of(size_t host) const {
  const auto found = votes_.find(host);
  return found == votes_.end() ? "" : found->second.token;
}

ByHost EpochAgreement::promised() const {
  ByHost present;
  for (const auto& [host, vote] : votes_) present[host] = vote.token;
  return present;
}

bool EpochAgreement::is_elected() const {
  return decides_alone() || chosen_.is_enough(promised(), host_of_worker_);
}

std::optional<EpochDecision> EpochAgreement::unfinished() const {
  const EpochProposal* newest = nullptr;
  for (const auto& [host, vote] : votes_) {
    const bool follows = vote.accepted && vote.accepted->next.members.epoch == chosen_.members.epoch + 1;
    if (follows && (newest == nullptr || vote.accepted->term > newest->term)) newest = &*vote.accepted;
  }
  return newest == nullptr ? std::nullopt : std::optional(newest->next);
}

const EpochProposal& EpochAgreement::propose(const comm::Members& members,
                                             const std::vector<std::string>& launchers) {
  return propose(EpochDecision{.members = members, .keeper = own_, .launchers = launchers});
}

const EpochProposal& EpochAgreement::propose(EpochDecision next) {
  open_ = EpochProposal{.term = term_, .base = chosen_, .next = std::move(next)};
  if (decides_alone()) return *open_;
  EpochVoter own(votes_.at(own_));
  own.accept(*open_);
  votes_[own_] = own.vote();
  return *open_;
}

std::optional<EpochProposal> EpochAgreement::take_chosen() {
  if (!open_) return std::nullopt;
  ByHost agreed;
  for (const auto& [host, vote] : votes_) {
    const auto& accepted = vote.accepted;
    if (accepted && accepted->term == term_ && accepted->next.members.epoch == open_->next.members.epoch)
      agreed[host] = vote.token;
  }
  if (!decides_alone() && !open_->base.is_enough(agreed, host_of_worker_)) return std::nullopt;
  EpochProposal chosen = *std::exchange(open_, std::nullopt);
  chosen.is_chosen = true;
  chosen_ = chosen.next;
  return chosen;
}

bool EpochAgreement::can_go_on(const std::vector<std::string>& launchers) const {
  return decides_alone() || chosen_.is_enough(by_host(launchers), host_of_worker_);
}

std::string EpochAgreement::describe(const std::vector<std::string>& launchers) const {
  return fmt::format("{} of the {} workers of epoch {}", chosen_.votes(by_host(launchers), host_of_worker_),
                     chosen_.members.by_rank.size(), chosen_.members.epoch);
}

std::string EpochAgreement::describe_votes() const {
  return fmt::format("{} of the {} workers of epoch {}", chosen_.votes(promised(), host_of_worker_),
                     chosen_.members.by_rank.size(), chosen_.members.epoch);
}

}  // namespace tutti

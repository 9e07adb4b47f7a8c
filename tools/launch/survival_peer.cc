#include "tools/launch/survival_peer.h"

#include <utility>

namespace tutti {
namespace {

SurvivalOptions with_end(SurvivalOptions options, const std::shared_ptr<OpenMeeting>& meeting) {
  options.at_end = [meeting] { meeting->close(); };
  return options;
}

}  // namespace

SurvivalPeer::SurvivalPeer(const PeerOptions& options)
    : options_(with_end(options.keeper, options.meeting)),
      meeting_(options.meeting),
      served_(serve_members_board(options.keeper)) {
  const size_t own = *options_.own;
  const std::vector<int> host_of_worker = hosts_by_worker(options_.hosts);
  EpochVote vote{.host = own, .token = options.token, .chosen = {.launchers = options_.launchers}};
  for (size_t worker = 0; worker < host_of_worker.size(); ++worker)
    vote.chosen.members.by_rank.push_back({static_cast<int>(worker), 0});
  if (own == options.keeper_host) {
    keep_list(EpochAgreement(vote, host_of_worker));
    return;
  }
  LaunchersBoards boards{.host_of_worker = host_of_worker,
                         .own = served_,
                         .vote = std::move(vote),
                         .comes_again = options.comes_again};
  int first_worker = 0;
  for (size_t host = 0; host < options_.hosts.size(); ++host) {
    boards.hosts.push_back(options_.hosts[host].name);
    if (host < own) first_worker += options_.hosts[host].workers;
  }
  guest_ = std::make_unique<SurvivalGuest>(
      GuestOptions{.host = own,
                   .first_worker = first_worker,
                   .workers = options_.hosts[own].workers,
                   .addresses = {options.keeper_address.host},
                   .port = static_cast<uint16_t>(options.keeper_address.port),
                   .keeper = "the launcher of " + options_.hosts[options.keeper_host].name,
                   .launch = options_.launch,
                   .secret = options_.secret,
                   .timeout = options_.timeout,
                   .start_timeout = options.start_timeout,
                   .launchers = std::move(boards)});
}

void SurvivalPeer::keep_list(EpochAgreement agreement) {
  keeper_ = std::make_unique<SurvivalKeeper>(options_, served_, std::move(agreement));
  meeting_->keep(served_.board);
}

std::vector<WorkerOrder> SurvivalPeer::look(const Say& say) {
  const bool may_keep = guest_ && !guest_->end();
  if (auto election = may_keep ? guest_->take_election() : std::nullopt) {
    keep_list(*std::move(election));
    guest_.reset();
  }
  return present().look(say);
}

}  // namespace tutti

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/transport/members.h"

// How the launchers of several hosts agree on who the members of an epoch are: Paxos, once for each epoch, in
// which the launchers vote with the members of the epoch before (docs/architecture.md, "When workers
// change"). Pure values and rules: no clock, no I/O.
namespace tutti {

// The members of an epoch. A launcher has a random token for each time that it is started, so that one that
// has forgotten what it has agreed to has no vote.
struct EpochDecision {
  comm::Members members = {};
  size_t keeper = 0;  // the host whose launcher has proposed this; half the votes are enough with it
  std::vector<std::string> launchers = {};  // by host: the token of the launcher that votes with its members

  // Returns true if these launchers, by host, may decide what follows: they have more than half of the
  // members, or half of them with the keeper.
  bool is_enough(const std::map<size_t, std::string>& present, const std::vector<int>& host_of_worker) const;
  // The number of members that these launchers vote with.
  int votes(const std::map<size_t, std::string>& present, const std::vector<int>& host_of_worker) const;
  // Returns true if this launcher votes with its members.
  bool admits(size_t host, const std::string& token) const;
};

// A keeper's proposal. The keeper of the term T is the launcher of the host T modulo the number of hosts.
struct EpochProposal {
  uint64_t term = 0;
  EpochDecision base = {};  // the newest members on which the launchers have agreed
  EpochDecision next = {};
  bool is_chosen = false;  // they have agreed on `next` as well
};

// All that one launcher has agreed to.
struct EpochVote {
  size_t host = 0;
  std::string token = {};
  uint64_t term = 0;  // it obeys no keeper of an earlier term
  EpochDecision chosen = {};
  std::optional<EpochProposal> accepted = {};  // for the epoch after `chosen`
};

// A launcher as a voter.
class EpochVoter {
 public:
  explicit EpochVoter(EpochVote vote) : vote_(std::move(vote)) {}

  const EpochVote& vote() const { return vote_; }
  // Returns false if it has promised a later term.
  bool promise(uint64_t term);
  // Agrees to the proposal, or learns that the others have. Returns false if nothing has changed.
  bool accept(const EpochProposal& proposal);

 private:
  EpochVote vote_;
};

// The votes as the keeper of one term counts them. A keeper without other launchers that could take its place
// decides alone.
class EpochAgreement {
 public:
  // Decides alone.
  EpochAgreement() = default;
  // `own`: what this launcher has agreed to, which includes this term.
  EpochAgreement(const EpochVote& own, std::vector<int> host_of_worker);

  uint64_t term() const { return term_; }
  size_t own_host() const { return own_; }
  const EpochDecision& chosen() const { return chosen_; }
  // A vote of another term is ignored.
  void hear(const EpochVote& vote);
  // The token of the launcher of this host that has promised this term; "" if none has.
  std::string token_of(size_t host) const;
  // Returns true if enough launchers have promised this term. `chosen()` is then the newest epoch on which
  // any launchers may have agreed, or the one before unfinished().
  bool is_elected() const;
  // An epoch on which an earlier keeper may have agreed with others: it has to be proposed before any other.
  std::optional<EpochDecision> unfinished() const;

  // Requires that no proposal is open.
  const EpochProposal& propose(const comm::Members& members, const std::vector<std::string>& launchers);
  const EpochProposal& propose(EpochDecision next);
  const std::optional<EpochProposal>& open() const { return open_; }
  // If the launchers have agreed on the open proposal: closes it, and returns it.
  std::optional<EpochProposal> take_chosen();
  void withdraw() { open_.reset(); }
  // Returns false if these launchers, by host, are too few to agree on anything.
  bool can_go_on(const std::vector<std::string>& launchers) const;
  // "2 of the 6 workers of epoch 3"
  std::string describe(const std::vector<std::string>& launchers) const;
  std::string describe_votes() const;

 private:
  bool decides_alone() const { return host_of_worker_.empty(); }
  std::map<size_t, std::string> promised() const;

  uint64_t term_ = 0;
  size_t own_ = 0;
  std::vector<int> host_of_worker_;
  EpochDecision chosen_;
  std::map<size_t, EpochVote> votes_;  // of this term, by host
  std::optional<EpochProposal> open_;
};

}  // namespace tutti

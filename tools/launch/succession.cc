#include "tools/launch/succession.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kBetweenLooksAtTerm{10};

class Succession {
 public:
  Succession(EpochVoter& voter, const HostStanding& standing, const SuccessionOptions& options)
      : voter_(voter),
        standing_(standing),
        options_(options),
        own_(voter.vote().host),
        term_(voter.vote().term) {
    absent_.insert(host());
  }

  Successor find();

 private:
  size_t host() const { return static_cast<size_t>(term_ % options_.hosts.size()); }
  std::optional<Successor> follow();
  void vote_for(comm::Rendezvous& board);
  Successor stand();
  bool all_have_voted(EpochAgreement& agreement);
  size_t heard(const EpochAgreement& agreement) const;

  EpochVoter& voter_;
  const HostStanding& standing_;
  const SuccessionOptions& options_;
  const size_t own_;
  uint64_t term_;              // that is tried
  std::set<size_t> absent_;    // hosts that do not answer
  std::set<size_t> answered_;  // others that have answered
};

Successor Succession::find() {
  for (;;) {
    term_ = std::max(term_, voter_.vote().term) + 1;
    if (host() == own_) return stand();
    try {
      if (auto successor = follow()) return *std::move(successor);
    } catch (const Error& error) {
      if (!comm::is_loss(error)) throw;
      if (!absent_.contains(host())) throw;
    }
  }
}

// Returns nullopt if the launcher of this term does not answer. It may still be with the old keeper: then the
// others go on without this one. Once it stands, it ends or is elected, however long it waits for others.
std::optional<Successor> Succession::follow() {
  const size_t candidate = host();
  absent_.insert(candidate);
  const auto board = options_.connect(candidate);
  if (!board) return std::nullopt;
  const auto deadline = options_.now() + options_.timeout;
  bool has_voted = false;
  std::string seen_proposal;
  while (has_voted || options_.now() < deadline) {
    const auto seen = parse_int(board->peek(kTermKey).value_or("0")).value_or(0);
    if (static_cast<uint64_t>(seen) >= term_ && voter_.promise(static_cast<uint64_t>(seen))) {
      if (!std::exchange(has_voted, true)) vote_for(*board);
      vote_on_proposal(voter_, *board, seen_proposal);
      if (board->peek(comm::kKeeperKey) == comm::kHere) return Successor{.board = board, .host = candidate};
    }
    options_.sleep(kBetweenLooksAtTerm);
  }
  absent_.erase(candidate);
  fail(ErrorKind::PeerLost, "the launcher of {} has not taken its place within {:g} s",
       options_.hosts[candidate], seconds(options_.timeout));
}

// The candidate counts the vote once its key is held.
void Succession::vote_for(comm::Rendezvous& board) {
  board.set(standing_key(own_), to_text(standing_));
  board.set(vote_key(own_), to_text(voter_.vote()));
  board.hold(host_key(own_), voter_.vote().token);
}

Successor Succession::stand() {
  if (!voter_.vote().chosen.admits(own_, voter_.vote().token))
    fail(ErrorKind::PeerLost, "no other launcher has taken its place");
  voter_.promise(term_);
  options_.own_board->set(kTermKey, std::to_string(term_));
  EpochAgreement agreement(voter_.vote(), options_.host_of_worker);
  size_t known = 0;
  auto deadline = options_.now() + options_.timeout;
  while (!all_have_voted(agreement) && options_.now() < deadline) {
    const size_t count = heard(agreement);
    if (std::exchange(known, count) != count) deadline = options_.now() + options_.timeout;
    options_.sleep(kBetweenLooksAtTerm);
  }
  if (!agreement.is_elected())
    fail(ErrorKind::PeerLost,
         "only the launchers of {} can be reached from here, and the others may go on with the list",
         agreement.describe_votes());
  return {.host = own_, .agreement = std::move(agreement)};
}

// A launcher that answers has not voted yet, since it notices the loss a little later.
bool Succession::all_have_voted(EpochAgreement& agreement) {
  bool all = true;
  for (size_t other = 0; other < options_.hosts.size(); ++other) {
    if (other == own_) continue;
    const auto text = options_.own_board->peek(vote_key(other));
    const auto held = options_.own_board->peek(host_key(other));
    if (text && held && epoch_vote_of(*text).token == *held) agreement.hear(epoch_vote_of(*text));
    if (!agreement.token_of(other).empty() || absent_.contains(other)) continue;
    if (!answered_.contains(other)) (options_.connect(other) ? answered_ : absent_).insert(other);
    all = false;
  }
  return all;
}

// Others notice the loss later, and vote over slow connections: each that answers or votes gives them time.
size_t Succession::heard(const EpochAgreement& agreement) const {
  size_t votes = 0;
  for (size_t other = 0; other < options_.hosts.size(); ++other) votes += !agreement.token_of(other).empty();
  return answered_.size() + votes;
}

}  // namespace

Successor find_successor(EpochVoter& voter, const HostStanding& standing, const SuccessionOptions& options) {
  return Succession(voter, standing, options).find();
}

void vote_on_proposal(EpochVoter& voter, comm::Rendezvous& board, std::string& seen) {
  const auto text = board.peek(kProposalKey);
  if (!text || *text == seen) return;
  if (voter.accept(epoch_proposal_of(*text))) board.set(vote_key(voter.vote().host), to_text(voter.vote()));
  seen = *text;
}

}  // namespace tutti

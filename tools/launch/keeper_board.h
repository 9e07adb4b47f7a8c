#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/launch/epoch_agreement.h"
#include "tools/launch/members_keeper.h"
#include "tools/launch/outcome.h"
#include "tutti/transport/rendezvous.h"

namespace tutti {

// The keeper of the list of members at its board: reads what the workers call, lets the other launchers agree
// on what the keeper decides (survival_board.h has their keys), and publishes it. Has no clock and knows no
// processes. Not thread-safe.
class KeeperBoard {
 public:
  // Publishes the epoch with which the keeper begins, unless the launchers have to agree on it first. The
  // keeper must outlive this.
  KeeperBoard(MembersKeeper& keeper, std::shared_ptr<comm::Rendezvous> board, EpochAgreement agreement = {});

  // Reads the calls and votes, decides and publishes. `launchers`: by host, the tokens of those that can be
  // reached, or "". If they are too few to agree on anything, the keeper ends the job.
  void look(MembersKeeper::Time now, const std::vector<std::string>& launchers = {});
  // Ends the job if these launchers are too few to agree on anything.
  void give_up_if_too_few(const std::vector<std::string>& launchers);
  // Returns true if it has.
  bool has_given_up() const { return has_given_up_; }
  // Returns true if the launchers have not agreed on the newest epoch yet.
  bool is_open() const { return agreement_.open().has_value(); }
  // Workers that have come back and have become members since the last call.
  std::vector<comm::Member> take_joined();

 private:
  void read_calls(MembersKeeper::Time now);
  void refuse_misfits();
  void read_votes();
  void propose(const std::vector<std::string>& launchers);
  void settle();
  void publish(const comm::Members& epoch);
  void publish_change();

  MembersKeeper& keeper_;
  const std::shared_ptr<comm::Rendezvous> board_;
  EpochAgreement agreement_;
  std::map<std::string, std::string> read_;  // the calls that the keeper knows, by key
  // Workers that have asked for a place, with their facts, which are not compared yet.
  std::vector<std::pair<comm::Member, std::string>> askers_;
  size_t published_ = 0;  // epochs of the keeper
  std::optional<uint64_t> published_change_;
  std::vector<comm::Member> joined_;
  bool has_given_up_ = false;
};

// Returns true if a worker has only said that it has lost the others.
bool misses_others(const Outcome& outcome);
// Returns true if the others may go on although the process of this worker has ended like this: it was
// killed, has left because of a signal, or only says that it has lost the others, which had gone on without
// it.
bool may_lose(const MembersKeeper& keeper, int worker, const Outcome& outcome);

}  // namespace tutti

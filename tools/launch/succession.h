#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/launch/epoch_agreement.h"
#include "tools/launch/survival_board.h"
#include "tutti/transport/members.h"
#include "tutti/transport/rendezvous.h"

// How another launcher takes the place of the keeper that is lost. The launchers try the terms that follow,
// and thus the hosts in their order, until one answers. If that is another host, a launcher votes for it on
// its board as soon as it has begun the term; if it is the own host, it waits for the votes of all that
// answer.
namespace tutti {

struct SuccessionOptions {
  std::vector<std::string> hosts = {};  // their names, for messages
  std::vector<int> host_of_worker = {};
  std::shared_ptr<comm::Rendezvous> own_board = {};
  // Connects to the board of a launcher. Returns nullptr if it does not answer.
  std::function<std::shared_ptr<comm::Rendezvous>(size_t host)> connect = {};
  std::chrono::milliseconds timeout{60'000};
  std::function<std::chrono::steady_clock::time_point()> now = std::chrono::steady_clock::now;
  comm::Sleep sleep = comm::sleep_in_this_thread;
};

// The launcher that keeps the list now.
struct Successor {
  std::shared_ptr<comm::Rendezvous> board = {};  // its board; nullptr: it is this launcher
  size_t host = 0;
  std::optional<EpochAgreement> agreement = {};  // if it is this launcher
};

// Finds the launcher that takes the place of the keeper of the term that the voter has promised last. Throws
// PeerLost, with the reason, if this launcher cannot go on: too few others can be reached, or they go on
// without it. Blocks.
Successor find_successor(EpochVoter& voter, const HostStanding& standing, const SuccessionOptions& options);

// Votes for the newest proposal on the keeper's board, or learns what was chosen. `seen` keeps the text that
// was read last, which is not read again.
void vote_on_proposal(EpochVoter& voter, comm::Rendezvous& board, std::string& seen);

}  // namespace tutti

#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "tools/launch/epoch_agreement.h"
#include "tools/launch/survival.h"
#include "tutti/base/address.h"
#include "tutti/transport/members.h"

// The messages between the launchers of a job with --min, on the board of the launcher that keeps the list of
// members (comm/members.h). Each start of a launcher has a random token. The keys:
//
//   host/HOST           the token of the launcher of this host, which holds it as long as it is connected
//   welcome/TOKEN       the lives of the host's workers, in JSON, once the keeper has noticed the launcher;
//                       kAway for a worker that is started later
//   ended/WORKER/LIFE   EndedWorker, by the launcher of this worker
//   orders/TOKEN        HostOrders, by the keeper
//
// With --nnodes each launcher serves such a board, since it may have to take the place of the keeper
// (succession.h). Further keys:
//
//   term                the term for which the launcher of this board is, or wants to be, the keeper
//   standing/HOST       HostStanding, by the launcher of this host before its first vote
//   vote/HOST           EpochVote, by the launcher of this host
//   proposal            the keeper's newest EpochProposal
//   terms, answer       on the keeper's board: for launchers that come again (open_meeting.h)
namespace tutti {

inline constexpr int kAway = -1;

// Makes the token of a launcher. It ends with the address of its board: a launcher that comes again has
// another one, which the others learn together with the epoch in which it votes.
std::string launcher_token(const Address& board);
// Returns nullopt for "".
std::optional<Address> board_address_in(const std::string& token);

// All that the keeper has told the launcher of one host so far.
struct HostOrders {
  std::vector<WorkerOrder> orders = {};  // in their order; the list only grows
  bool job_is_done = false;
  bool is_lost = false;        // the others have gone on without the workers of this host
  int restarts = 0;            // of workers, since the job was first started
  std::vector<int> away = {};  // the workers of all hosts that are not to run
  std::optional<JobEnd> end = {};

  bool operator==(const HostOrders&) const = default;
};

// The state of one host, which the launcher tells so that another keeper can go on from there.
struct HostStanding {
  struct Worker {
    int life = 0;
    bool runs = true;  // or is to be started again
    bool operator==(const Worker&) const = default;
  };
  std::vector<Worker> workers = {};
  bool job_is_done = false;
  int restarts = 0;  // this and the next as the keeper before has told
  std::vector<int> away = {};

  bool operator==(const HostStanding&) const = default;
};

// To and from the texts on the board. The functions that read throw DataLoss.
std::string to_text(const EndedWorker& ended);
EndedWorker ended_worker_of(const std::string& text);
std::string to_text(const HostOrders& orders);
HostOrders host_orders_of(const std::string& text);
std::string to_text(const std::vector<int>& lives);
std::vector<int> lives_of(const std::string& text);

std::string to_text(const HostStanding& standing);
HostStanding host_standing_of(const std::string& text);
std::string to_text(const EpochVote& vote);
EpochVote epoch_vote_of(const std::string& text);
std::string to_text(const EpochProposal& proposal);
EpochProposal epoch_proposal_of(const std::string& text);

inline constexpr const char* kTermKey = "term";
inline constexpr const char* kProposalKey = "proposal";
std::string standing_key(size_t host);
std::string vote_key(size_t host);
std::string host_key(size_t host);
std::string welcome_key(const std::string& token);
std::string ended_key(const comm::Member& member);
std::string orders_key(const std::string& token);

}  // namespace tutti

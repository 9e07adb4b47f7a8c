#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/cluster/task_context.h"
#include "tutti/net/credentials.h"
#include "tutti/rpc/host.h"
#include "tutti/transport/rank_layout.h"
#include "tutti/transport/rendezvous.h"

namespace tutti::comm {

// Describes this worker to the others, and how it meets them.
struct Meeting {
  std::string device = "cpu";  // on which it computes: one word
  int threads = 1;
  // Shares a text of rank 0, which alone passes one, with all ranks, and with nobody else. Empty: the
  // launcher says where they meet.
  std::function<std::string(const std::optional<std::string>& text)> share = {};
};

// A rank, its host and its device, as all ranks know them after they have met.
struct RankDevice {
  std::string who;
  std::string host;
  std::string device;  // Meeting::device
};

// The workers of a job before they are connected: where they meet, who they are, and on which hosts.
struct Roster {
  std::shared_ptr<Rendezvous> board;
  // At the rank that serves the board: tasks with another secret.
  std::shared_ptr<rpc::RefusedCallers> refused = std::make_shared<rpc::RefusedCallers>();
  std::string board_host;
  std::vector<std::string> who = {};      // "worker/2 on node7"
  std::optional<RankLayout> layout = {};  // nullopt if the ranks of some host are not contiguous
  std::vector<RankDevice> devices = {};   // by rank

  bool one_host() const { return layout && layout->hosts() == 1; }
  bool two_levels() const { return layout && layout->has_two_levels(); }
};

// Finds the board at which the ranks meet, unless it is given: at the address of rank 0, through the launcher
// or through MPI. There all ranks tell who they are, and rank 0 compares their flags. Throws a Timeout that
// names the ranks that did not come, and on all ranks an InvalidArgument if their flags differ.
Roster find_roster(const TaskContext& context, const Meeting& meeting,
                   std::shared_ptr<Rendezvous> board = nullptr);

// Returns the flags that all workers must have the same, one line each.
std::vector<std::string> common_flags(const TaskContext& context);

// Returns the board with the list of the members (comm/members.h), of the launcher of this worker.
std::shared_ptr<Rendezvous> find_members_board(const TaskContext& context);

// Returns the credentials of the ranks. The secret is one that only the processes of this job have: its name,
// the id of the launch and --secret, each if there is one; and what rank 0 has told. What they send is
// encrypted if each has a certificate and the authority of the others.
net::Credentials credentials_of_ranks(const TaskContext& context, const std::string& told = "");
// Returns --timeout.
std::chrono::milliseconds timeout_of(const TaskContext& context);

}  // namespace tutti::comm

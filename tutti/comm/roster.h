#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/cluster/context.h"
#include "tutti/comm/hosts.h"
#include "tutti/comm/members.h"
#include "tutti/comm/rendezvous.h"
#include "tutti/net/credentials.h"
#include "tutti/rpc/host.h"

namespace tutti::comm {

// The workers of a job before they are connected: where they meet, who they are, and on which hosts.
struct Roster {
  std::shared_ptr<Rendezvous> board;
  // At the rank that serves the board: tasks with another secret.
  std::shared_ptr<rpc::RefusedCallers> refused = std::make_shared<rpc::RefusedCallers>();
  std::string board_host;
  std::vector<std::string> who = {};      // "worker/2 on node7"
  std::optional<RankLayout> layout = {};  // nullopt if the ranks of some host are not contiguous
  std::string no_nccl = {};               // why they do not use NCCL; "" if they can

  bool one_host() const { return layout && layout->hosts() == 1; }
  bool two_levels() const { return layout && layout->has_two_levels(); }
};

// Finds the board at which the ranks meet, unless it is given: at the address of rank 0, through the launcher
// or through MPI. There all ranks tell who they are, and rank 0 compares their flags. Throws a Timeout that
// names the ranks that did not come, and on all ranks an InvalidArgument if their flags differ.
Roster find_roster(const Context& context, std::shared_ptr<Rendezvous> board = nullptr);

// Returns the flags that all workers must have the same, one line each.
std::vector<std::string> common_flags(const Context& context);

// Returns the board with the list of the members (comm/members.h), of the launcher of this worker.
std::shared_ptr<Rendezvous> find_members_board(const Context& context);

// Returns the credentials of the ranks. The secret is one that only the processes of this job have: its name,
// the id of the launch and --secret, each if there is one; and what rank 0 has told. What they send is
// encrypted if each has a certificate and the authority of the others.
net::Credentials credentials_of_ranks(const Context& context, const std::string& told = "");
// Returns --timeout.
std::chrono::milliseconds timeout_of(const Context& context);

}  // namespace tutti::comm

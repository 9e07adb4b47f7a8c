#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/cluster/context.h"
#include "tutti/comm/hosts.h"
#include "tutti/comm/rendezvous.h"
#include "tutti/net/credentials.h"

namespace tutti::comm {

// What a worker knows of all workers before they are connected.
struct Roster {
  std::shared_ptr<Rendezvous> board;
  // At the rank that serves the board: the connections that were refused because they have another secret.
  std::shared_ptr<std::atomic<int>> refused = std::make_shared<std::atomic<int>>(0);
  std::string board_host;
  std::vector<std::string> who = {};      // "worker/2 on node7"
  std::optional<RankLayout> layout = {};  // nullopt if the ranks of some host are not contiguous
  std::string no_nccl = {};               // why they do not use NCCL; "" if they can

  bool one_host() const { return layout && layout->hosts() == 1; }
  bool two_levels() const { return layout && layout->has_two_levels(); }
};

// Finds the board at which the ranks meet: at the address of rank 0, through the launcher or through MPI.
// There all ranks tell who they are, and rank 0 compares their flags. Throws a Timeout that names the ranks
// that did not come, and on all ranks an InvalidArgument if their flags differ.
Roster find_roster(const Context& context);

// Returns the credentials of the ranks. The secret is one that only the processes of this job have: its name,
// the id of the launch and --secret, each if there is one; and what rank 0 has told. What they send is
// encrypted if each has a certificate and the authority of the others.
net::Credentials credentials_of_ranks(const Context& context, const std::string& told = "");
// Returns --timeout.
std::chrono::milliseconds timeout_of(const Context& context);

}  // namespace tutti::comm

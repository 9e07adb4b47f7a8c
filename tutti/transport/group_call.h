#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "tutti/transport/rendezvous.h"

namespace tutti::comm {

// The call of one rank for a group of some ranks.
struct GroupCall {
  const std::vector<int>& ranks;        // of the group, in their order
  int rank = 0;                         // this one
  const std::vector<std::string>& who;  // the names of all ranks, for error messages; empty: "rank 3"
  std::chrono::milliseconds timeout;
  // Returns true if the rank is known to have ended.
  std::function<bool(int rank)> is_gone = [](int) { return false; };
};

// Waits until every rank of a new group has called for it, on a board of its own. Throws InvalidArgument if
// they do not give the same ranks in the same order, or have made a group on this board before; a PeerLost
// that names a rank that has ended; a Timeout that names the ranks that have not called. The text is the same
// for all ranks that still wait.
void meet_for_group(Rendezvous& board, const GroupCall& call);

}  // namespace tutti::comm

#pragma once

#include "tutti/comm/communicator.h"
#include "tutti/transport/rank_layout.h"

namespace tutti::comm {

// For callers that exploit the shared memory of each host's ranks themselves: data moved by the
// communicator's all_to_all_uneven() to another host goes straight over the network.
struct Hosts {
  RankLayout layout;
  // The ranks of this host, in their order, with SharedVectors. All hosts must call the same operations on it
  // in the same order. It and the communicator fail together, with one text; communicators that are split
  // from it do not.
  Communicator& inside;
};

}  // namespace tutti::comm

#pragma once

#include <chrono>
#include <memory>

#include "tutti/comm/transport.h"

namespace tutti::comm {

// A transport for ranks on several hosts, some of which have several ranks. Ranks of a host share memory, and
// hosts communicate over the network. `network` must have all ranks and `Failures`; `memory` must have
// SharedBlocks and the ranks of this host, in their order. Every rank must call this. docs/architecture.md
// shows the steps and their costs.
std::unique_ptr<Transport> hierarchy_transport(std::unique_ptr<Transport> network,
                                               std::unique_ptr<Transport> memory, const RankLayout& layout,
                                               std::chrono::milliseconds timeout);

}  // namespace tutti::comm

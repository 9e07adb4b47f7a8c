#pragma once

#include <chrono>
#include <memory>

#include "tutti/comm/transport.h"

namespace tutti::comm {

// Ranks on several hosts, some of which have several: inside a host they share memory, and what goes between
// hosts takes the network. `network` has all ranks and a failure board; `memory` is in place and has those of
// this host, in their order. Every rank calls it.
std::unique_ptr<Transport> hierarchy_transport(std::unique_ptr<Transport> network,
                                               std::unique_ptr<Transport> memory, const Placement& placement,
                                               std::chrono::milliseconds timeout);

}  // namespace tutti::comm

#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "tutti/comm/transport.h"

namespace tutti::comm {

// Ranks that are threads of this process, for tests: the transports of all of them, in rank order.
std::vector<std::unique_ptr<Transport>> inproc_transports(int world, std::chrono::milliseconds timeout);

}  // namespace tutti::comm

#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "tutti/transport/transport.h"

namespace tutti::comm {

// Returns the transports of ranks that are threads of this process, in rank order. For tests.
std::vector<std::unique_ptr<Transport>> inproc_transports(int world, std::chrono::milliseconds timeout);

}  // namespace tutti::comm

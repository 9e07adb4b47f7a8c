#pragma once

#include <vector>

namespace tutti {

// Returns different TCP ports of 127.0.0.1 at which nothing listens now. If possible they lie outside the
// system's range of ephemeral ports, so that no other program is given one of them by chance before the
// caller listens at it, and then receives connections that were meant for the caller. Throws Overloaded if no
// port is free.
std::vector<int> free_ports(int count);

}  // namespace tutti

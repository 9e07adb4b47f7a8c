#pragma once

#include <vector>

namespace tutti {

// TCP ports of 127.0.0.1 that nobody listened on just now, all different. Overloaded where the machine has
// none left.
std::vector<int> free_ports(int count);

}  // namespace tutti

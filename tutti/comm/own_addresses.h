#pragma once

#include <string>
#include <vector>

namespace tutti::comm {

// The IPv4 addresses of this host's interfaces that are up, the loopback's left out.
std::vector<std::string> own_addresses();

std::string host_name();

}  // namespace tutti::comm

#pragma once

#include <string>
#include <vector>

namespace tutti {

// Returns the addresses of this host's active interfaces that other hosts can reach: no loopback and no
// link-local IPv6 addresses. IPv4 comes first.
std::vector<std::string> own_addresses();

// Returns the name of this host, or "localhost" if it has none.
std::string host_name();

// Returns a text that is equal for two processes only if they are on one host, see each other's /proc, and
// reach each other over loopback.
std::string host_identity();

}  // namespace tutti

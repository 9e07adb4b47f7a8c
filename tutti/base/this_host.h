#pragma once

#include <string>
#include <vector>

namespace tutti {

// The addresses of this host's interfaces that are up and that others can reach: neither the loopback's, nor
// IPv6's of one link. IPv4 first.
std::vector<std::string> own_addresses();

// "localhost" where it has none.
std::string host_name();

// The same for processes that are on one host and see one another's /proc, and for no others.
std::string host_identity();

}  // namespace tutti

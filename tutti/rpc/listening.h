#pragma once

#include <string>

#include "tutti/base/address.h"

// Checks of an address for a server.
namespace tutti::rpc {

// Returns true if all addresses of the host are loopback. Throws InvalidArgument if it cannot be resolved.
bool is_loopback(const std::string& host);

// Returns 0 if this process could listen there, else the value of errno.
int why_not_listen(const Address& address);

// Returns " by pid 123 (python3)", or "" if /proc does not show it.
std::string user_of_port(int port);

}  // namespace tutti::rpc

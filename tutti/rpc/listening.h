#pragma once

#include <string>

#include "tutti/base/address.h"

// What there is to know of an address before, and after, a host listens there.
namespace tutti::rpc {

// Whether it is this machine's alone. A host that is not known is an InvalidArgument.
bool is_loopback(const std::string& host);

// 0 where this process could listen there, else errno's value.
int why_not_listen(const Address& address);

// " by pid 123 (python3)", or "" where /proc does not tell.
std::string user_of_port(int port);

}  // namespace tutti::rpc

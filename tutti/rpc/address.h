#pragma once

#include <string>

namespace tutti::rpc {

struct HostAndPort {
  std::string host;  // a name or an address, without brackets
  int port = 0;
};

// "h:2222", "127.0.0.1:0", "[::1]:80"; anything else is an InvalidArgument.
HostAndPort parse_address(const std::string& address);

// Whether it is this machine's alone. A host that is not known is an InvalidArgument.
bool is_loopback(const std::string& host);

// 0 where this process could listen there, else errno's value.
int why_not_listen(const HostAndPort& address);

// " by pid 123 (python3)", or "" where /proc does not tell.
std::string user_of_port(int port);

}  // namespace tutti::rpc

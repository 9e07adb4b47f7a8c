#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <sys/socket.h>
#include <vector>

#include "tutti/base/file.h"

namespace tutti {

// Where a socket is, or shall be. A value.
struct SocketAddress {
  sockaddr_storage bytes{};
  socklen_t size = sizeof(sockaddr_storage);  // room for the system to fill in

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&bytes); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
};

struct Resolved {
  std::vector<SocketAddress> addresses;  // the best first
  std::string trouble;                   // why there is none
};

// Of a host's name, or of an address in numbers.
Resolved resolve(const std::string& host, int port);

// "10.0.0.3", "2001:db8::1"; an IPv4 address on a socket of both families as IPv4.
std::string numeric(const SocketAddress& address);
int port_of(const SocketAddress& address);

// A TCP socket that does not block, or errno.
struct Connected {
  FileDescriptor socket;
  int error = 0;
};

// An address that is down gives no answer at all: ETIMEDOUT when that time is over.
Connected connect_within(const SocketAddress& address, std::chrono::milliseconds patience);
// The same for those who mind other things meanwhile: `await` returns when the socket can be written to;
// false where it gives up.
Connected connect_awaiting(const SocketAddress& address, const std::function<bool(int socket)>& await);

}  // namespace tutti

#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <vector>

#include "tutti/base/file.h"

namespace tutti {

// The address of a socket.
struct SocketAddress {
  sockaddr_storage bytes{};
  socklen_t size = sizeof(sockaddr_storage);  // capacity, which the system replaces by the actual size

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&bytes); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
};

struct Resolved {
  std::vector<SocketAddress> addresses;  // in order of preference
  std::string trouble;                   // why there are none
};

// Resolves a host name or a numeric address.
Resolved resolve(const std::string& host, int port);

// Returns the numeric form, "10.0.0.3" or "2001:db8::1". An IPv4-mapped address is written as IPv4.
std::string numeric(const SocketAddress& address);
int port_of(const SocketAddress& address);
// Returns true if only this machine can reach the address. Also accepts a numeric address as text.
bool is_loopback(const SocketAddress& address);
bool is_loopback(std::string_view numbers);

// Returns this machine's own address towards a host; the loopback for "". Throws InvalidArgument if the name
// cannot be resolved, or there is no route.
std::string address_towards(const std::string& host);

// A non-blocking TCP socket, or the value of errno.
struct Connected {
  FileDescriptor socket;
  int error = 0;
};

// Returns true if an error means that the process or the system has run out of descriptors or memory.
bool is_shortage(int error);

// Connects. Fails with ETIMEDOUT after `patience`: an address that is down does not answer at all.
Connected connect_within(const SocketAddress& address, std::chrono::milliseconds patience);

// A non-blocking TCP socket that listens, or the value of errno. Port 0 requests any free port.
struct Listening {
  FileDescriptor socket;
  int port = 0;
  int error = 0;
};

// Listens at this address only.
Listening listen_at(const SocketAddress& address);
// Listens on this port of every address of this machine, in both families if it has both.
Listening listen_everywhere(int port);

}  // namespace tutti

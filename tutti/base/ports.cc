#include "tutti/base/ports.h"

#include <arpa/inet.h>
#include <cerrno>
#include <fstream>
#include <netinet/in.h>
#include <optional>
#include <random>
#include <sys/socket.h>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/file.h"

namespace tutti {
namespace {

// A port stays taken while its socket lives, so that the next port found is a different one.
struct BoundPort {
  FileDescriptor socket;
  int port;
};

// Returns nullopt if the port is taken. Port 0 requests any free port.
std::optional<BoundPort> bind_port(int port) {
  FileDescriptor descriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (descriptor.get() < 0) fail_errno(errno, "opening a socket to find a free port");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(descriptor.get(), generic, size) != 0 || getsockname(descriptor.get(), generic, &size) != 0)
    return std::nullopt;
  return BoundPort{std::move(descriptor), ntohs(address.sin_port)};
}

BoundPort bind_any() {
  auto bound = bind_port(0);
  if (!bound)
    fail(ErrorKind::Overloaded, "no free port on 127.0.0.1: {}; `tutti doctor` shows the range",
         errno_text(errno));
  return std::move(*bound);
}

struct Range {
  int first;
  int last;
};

// Returns the larger range of ports outside the system's ephemeral ports.
Range quiet_ports() {
  constexpr Range kUsual{32768, 60999};  // the default of Linux
  constexpr int kFirst = 10000;          // too many services use ports below
  constexpr int kLast = 65535;
  Range served = kUsual;
  std::ifstream file("/proc/sys/net/ipv4/ip_local_port_range");
  if (Range read{}; file >> read.first >> read.last) served = read;
  return served.first - kFirst > kLast - served.last ? Range{kFirst, served.first - 1}
                                                     : Range{served.last + 1, kLast};
}

BoundPort bind_quiet(std::mt19937& random) {
  constexpr int kTries = 200;
  const Range quiet = quiet_ports();
  if (quiet.last - quiet.first < kTries) return bind_any();
  for (int i = 0; i < kTries; ++i) {
    if (auto bound = bind_port(std::uniform_int_distribution<int>(quiet.first, quiet.last)(random)))
      return std::move(*bound);
  }
  return bind_any();
}

}  // namespace

std::vector<int> free_ports(int count) {
  std::mt19937 random(std::random_device{}());
  std::vector<BoundPort> bound;
  std::vector<int> ports;
  for (int i = 0; i < count; ++i) {
    bound.push_back(bind_quiet(random));
    ports.push_back(bound.back().port);
  }
  return ports;
}

}  // namespace tutti

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
#include "tutti/base/text.h"

namespace tutti {
namespace {

// A port stays reserved while its socket lives.
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
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(descriptor.get(), generic, size) != 0 || getsockname(descriptor.get(), generic, &size) != 0)
    return std::nullopt;
  // The port was free. From here on, a program that sets this option as well may listen there.
  const int yes = 1;
  setsockopt(descriptor.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  return BoundPort{std::move(descriptor), ntohs(address.sin_port)};
}

BoundPort bind_any() {
  auto bound = bind_port(0);
  if (!bound)
    fail(ErrorKind::Overloaded, "no free port on this machine: {}; `tutti doctor` shows the range",
         errno_text(errno));
  return std::move(*bound);
}

// Returns the larger range of ports outside the system's ephemeral ports.
PortRange quiet_ports() {
  constexpr PortRange kUsual{32768, 60999};  // the default of Linux
  constexpr int kFirst = 10000;              // too many services use ports below
  constexpr int kLast = 65535;
  PortRange served = kUsual;
  std::ifstream file("/proc/sys/net/ipv4/ip_local_port_range");
  if (PortRange read{}; file >> read.first >> read.last) served = read;
  return served.first - kFirst > kLast - served.last ? PortRange{kFirst, served.first - 1}
                                                     : PortRange{served.last + 1, kLast};
}

BoundPort bind_quiet(std::mt19937& random) {
  constexpr int kTries = 200;
  const PortRange quiet = quiet_ports();
  if (quiet.last - quiet.first < kTries) return bind_any();
  for (int i = 0; i < kTries; ++i) {
    if (auto bound =
            bind_port(std::uniform_int_distribution<int>(quiet.first, quiet.last)(random)))  // no weights
      return std::move(*bound);
  }
  return bind_any();
}

// Tries all ports of the range, from any one of them on, so that jobs that start together seldom collide.
BoundPort bind_in(const PortRange& range, std::mt19937& random) {
  const int size = range.last - range.first + 1;
  const int begin = std::uniform_int_distribution<int>(0, size - 1)(random);  // no weights
  for (int i = 0; i < size; ++i) {
    if (auto bound = bind_port(range.first + (begin + i) % size)) return std::move(*bound);
  }
  fail(ErrorKind::Overloaded,
       "too few of the ports {}-{} are free on this machine (`ss -tan` shows who uses them; a closed "
       "connection "
       "keeps its port for a minute): give a larger range",
       range.first, range.last);
}

}  // namespace

PortRange parse_port_range(std::string_view text) {
  const size_t dash = text.find('-');
  const auto first = parse_int(text.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : parse_int(text.substr(dash + 1));
  const PortRange all;
  if (!first || !last || *first < all.first || *last > all.last || *first > *last)
    fail(ErrorKind::InvalidArgument, "'{}' is not a range of ports, such as 2222-2300", text);
  return {static_cast<int>(*first), static_cast<int>(*last)};
}

HeldPorts::HeldPorts(int count, const std::optional<PortRange>& range) {
  if (range && range->last - range->first + 1 < count)
    fail(ErrorKind::InvalidArgument, "the range of ports {}-{} is too small for {} tasks", range->first,
         range->last, count);
  std::mt19937 random(std::random_device{}());
  for (int i = 0; i < count; ++i) {
    BoundPort bound = range ? bind_in(*range, random) : bind_quiet(random);
    sockets_.push_back(std::move(bound.socket));
    numbers_.push_back(bound.port);
  }
}

std::vector<int> free_ports(int count) { return HeldPorts(count).numbers(); }

}  // namespace tutti

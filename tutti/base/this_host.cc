#include "tutti/base/this_host.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <ifaddrs.h>
#include <memory>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/base/net.h"

namespace tutti {
namespace {

bool is_reachable(const ifaddrs& item) {
  if (item.ifa_addr == nullptr || (item.ifa_flags & IFF_UP) == 0 || (item.ifa_flags & IFF_LOOPBACK) != 0)
    return false;
  if (item.ifa_addr->sa_family != AF_INET6) return item.ifa_addr->sa_family == AF_INET;
  return !IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(item.ifa_addr)->sin6_addr);
}

SocketAddress address_of(const ifaddrs& item) {
  SocketAddress address;
  address.size = item.ifa_addr->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::memcpy(&address.bytes, item.ifa_addr, address.size);
  return address;
}

// Returns the id that the kernel generates at every boot. Files in /proc do not report their size.
std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  if (!(file >> id)) fail(ErrorKind::InvalidArgument, "/proc/sys/kernel/random/boot_id cannot be read");
  return id;
}

}  // namespace

std::vector<std::string> own_addresses() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) fail_errno(errno, "reading the addresses of this host");
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> list(first, freeifaddrs);
  std::vector<std::string> addresses;
  for (const ifaddrs* item = first; item != nullptr; item = item->ifa_next) {
    if (is_reachable(*item)) addresses.push_back(numeric(address_of(*item)));
  }
  std::stable_partition(addresses.begin(), addresses.end(),
                        [](const std::string& text) { return text.find(':') == std::string::npos; });
  return addresses;
}

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  return name.data();
}

std::string host_identity() {
  std::string identity = boot_id();
  for (const char* path : {"/proc/self/ns/pid", "/proc/self/ns/net"}) {
    struct stat of_namespace {};
    if (stat(path, &of_namespace) != 0) fail_errno(errno, fmt::format("reading {}", path));
    identity += fmt::format("/{}", of_namespace.st_ino);
  }
  return identity;
}

}  // namespace tutti

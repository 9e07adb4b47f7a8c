#include "tutti/rpc/listening.h"

#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <sstream>
#include <sys/socket.h>
#include <system_error>

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/text.h"

namespace tutti::rpc {
namespace {

namespace fs = std::filesystem;

using Found = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Found look_up(const Address& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (error != 0)
    fail(ErrorKind::InvalidArgument, "host '{}' cannot be resolved: {}. Check the name", address.host,
         gai_strerror(error));
  return {found, &freeaddrinfo};
}

bool leads_to_loopback(const sockaddr& address) {
  if (address.sa_family == AF_INET)
    return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24 == 127;
  if (address.sa_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr) != 0;
  return false;
}

// Returns the inode of the socket that listens on a port, from a table in /proc/net. Its columns are number,
// local address, remote address, state, queues, timer, retransmissions, user, timeout, inode.
std::string listening_inode(const char* table, int port) {
  std::ifstream file(table);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::array<std::string, 10> columns;
    for (std::string& column : columns) words >> column;
    const bool listens = columns[3] == "0A";
    if (listens && columns[1].ends_with(fmt::format(":{:04X}", port))) return columns[9];
  }
  return "";
}

bool has_descriptor(const fs::path& process, const std::string& target) {
  std::error_code error;  // the process may end meanwhile
  for (fs::directory_iterator entry(process / "fd", error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code closed;
    if (fs::read_symlink(*entry, closed) == target) return true;
  }
  return false;
}

}  // namespace

bool is_loopback(const std::string& host) {
  const Found all = look_up({host, 0});
  for (const addrinfo* address = all.get(); address != nullptr; address = address->ai_next) {
    if (!leads_to_loopback(*address->ai_addr)) return false;
  }
  return true;
}

int why_not_listen(const Address& address) {
  const Found all = look_up(address);
  const FileDescriptor descriptor(
      ::socket(all->ai_family, all->ai_socktype | SOCK_CLOEXEC, all->ai_protocol));
  const int on = 1;
  // Like gRPC: a port is free even if its last connections are still being closed.
  setsockopt(descriptor.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const bool listens = descriptor.get() >= 0 &&
                       ::bind(descriptor.get(), all->ai_addr, all->ai_addrlen) == 0 &&
                       ::listen(descriptor.get(), 1) == 0;
  return listens ? 0 : errno;
}

std::string user_of_port(int port) {
  std::string inode = listening_inode("/proc/net/tcp", port);
  if (inode.empty()) inode = listening_inode("/proc/net/tcp6", port);
  if (inode.empty()) return "";
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    const auto pid = parse_int(entry.path().filename().string());
    if (!pid || !has_descriptor(entry.path(), fmt::format("socket:[{}]", inode))) continue;
    std::string name = read_system_file(entry.path() / "comm");
    if (name.ends_with('\n')) name.pop_back();
    return fmt::format(" by pid {} ({})", *pid, name);
  }
  return "";
}

}  // namespace tutti::rpc

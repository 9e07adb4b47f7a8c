#include "tutti/net/listener.h"

#include <array>
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <netinet/in.h>
#include <poll.h>
#include <sstream>
#include <sys/resource.h>
#include <sys/socket.h>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/address.h"
#include "tutti/base/error.h"
#include "tutti/base/net.h"
#include "tutti/base/text.h"

namespace tutti::net {
namespace {

namespace fs = std::filesystem;

// Reserved for what the process opens besides connections.
constexpr int kSpareDescriptors = 32;
constexpr int kFewCallers = 8;

// A new descriptor gets the lowest free number.
bool has_spare(int any) {
  const FileDescriptor next(fcntl(any, F_DUPFD_CLOEXEC, 0));
  if (next.get() < 0) return false;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return true;
  return static_cast<rlim_t>(next.get()) + kSpareDescriptors < limit.rlim_cur;
}

// Returns the inode of the socket that listens on a port, from a table in /proc/net. Its columns are number,
// local address, remote address, state, queues, timer, retransmissions, user, timeout, inode.
std::string listening_inode(const char* table, int port) {
  std::ifstream file(table);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::array<std::string, 10> columns;
    for (std::string& column : columns) fields >> column;
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

// Returns " by pid 123 (python3)", or "" if /proc does not show it.
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

[[noreturn]] void fail_to_listen(const Address& address, int error) {
  if (error == EADDRINUSE)
    fail(ErrorKind::Overloaded,
         "port {} is in use{}: choose another one (0 selects a free port), or end that process", address.port,
         user_of_port(address.port));
  fail_errno(error, "listening at " + to_string(address));
}

SocketAddress with_port(SocketAddress address, int port) {
  // The port is at the same offset in both address families.
  reinterpret_cast<sockaddr_in*>(address.get())->sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

// A name may have several addresses, some of them not of this machine. Listens on all with the same port.
std::vector<FileDescriptor> listen_at_all(const Address& address, int& port) {
  const Resolved resolved = resolve(address.host, address.port);
  if (resolved.addresses.empty())
    fail(ErrorKind::InvalidArgument, "host '{}' cannot be resolved: {}. Check the name", address.host,
         resolved.trouble);
  port = address.port;
  std::vector<FileDescriptor> sockets;
  int error = EADDRNOTAVAIL;
  for (const SocketAddress& place : resolved.addresses) {
    Listening listening = listen_at(with_port(place, port));
    error = listening.error;
    if (error == EADDRINUSE) break;
    if (error != 0) continue;
    port = listening.port;
    sockets.push_back(std::move(listening.socket));
  }
  if (sockets.empty() || error == EADDRINUSE) fail_to_listen(address, error);
  return sockets;
}

std::vector<FileDescriptor> listen_for(const Address& address, int& port) {
  if (address.host != "0.0.0.0" && address.host != "::") return listen_at_all(address, port);
  Listening listening = listen_everywhere(address.port);
  if (listening.error != 0) fail_to_listen(address, listening.error);
  port = listening.port;
  std::vector<FileDescriptor> sockets;
  sockets.push_back(std::move(listening.socket));
  return sockets;
}

}  // namespace

Listener::Listener(const std::string& address) : sockets_(listen_for(parse_address(address), port_)) {
  // With fewer, callers would wait for ever.
  require_descriptors(kSpareDescriptors + kFewCallers, "serving at " + address);
}

bool Listener::has_spare_descriptors() const { return has_spare(sockets_.front().get()); }

std::vector<int> Listener::descriptors() const {
  std::vector<int> all;
  for (const FileDescriptor& socket : sockets_) all.push_back(socket.get());
  return all;
}

void Listener::stop() const {
  for (const FileDescriptor& socket : sockets_) ::shutdown(socket.get(), SHUT_RDWR);
}

// Ignores errors of a single connection, because the next one may succeed.
FileDescriptor Listener::accept(std::chrono::milliseconds timeout) const {
  if (!has_spare_descriptors()) {
    std::this_thread::sleep_for(timeout);
    return FileDescriptor();
  }
  std::vector<pollfd> events;
  for (const FileDescriptor& socket : sockets_) events.push_back({socket.get(), POLLIN, 0});
  if (poll(events.data(), events.size(), static_cast<int>(timeout.count())) <= 0) return FileDescriptor();
  for (const pollfd& event : events) {
    if (event.revents == 0) continue;
    FileDescriptor socket(accept4(event.fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    // The connection stays in the queue, so that poll(2) would return at once, again and again.
    if (socket.get() < 0 && is_shortage(errno)) std::this_thread::sleep_for(timeout);
    return socket;
  }
  return FileDescriptor();
}

}  // namespace tutti::net

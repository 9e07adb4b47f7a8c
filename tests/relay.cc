#include "tests/relay.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <poll.h>
#include <stdexcept>
#include <sys/socket.h>
#include <vector>

#include "tests/tool.h"

namespace tutti::testing {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMostOnTheWay = size_t{4} << 20;
constexpr milliseconds kLookAround{20};  // interval for checking cut_ and ended_

}  // namespace

Relay::Relay(int target, milliseconds delay)
    : target_(target), delay_(delay), listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  SocketAddress address = loopback(0);
  if (bind(listener_.get(), address.get(), address.size) != 0 || listen(listener_.get(), 16) != 0 ||
      getsockname(listener_.get(), address.get(), &address.size) != 0)
    throw std::runtime_error("no port for a relay");
  port_ = port_of(address);
  thread_ = std::thread([this] { work(); });
}

Relay::~Relay() {
  ended_ = true;
  thread_.join();
}

void Relay::work() {
  while (!ended_) {
    wait();
    for (Connection& connection : connections_) {
      for (Direction* direction : {&connection.forth, &connection.back}) {
        read_into(connection, *direction);
        write_from(connection, *direction);
      }
    }
    if (cut_.exchange(false)) {
      broken_ += static_cast<int>(std::count_if(connections_.begin(), connections_.end(),
                                                [](const Connection& c) { return c.used; }));
      connections_.clear();
    }
    connections_.remove_if([](const Connection& connection) { return connection.ended; });
  }
}

// Waits until there is data to read or delayed data is due.
void Relay::wait() {
  std::vector<pollfd> events = {{listener_.get(), POLLIN, 0}};
  auto until = Clock::now() + kLookAround;
  for (const Connection& connection : connections_) {
    for (const Direction* direction : {&connection.forth, &connection.back}) {
      if (direction->size < kMostOnTheWay) events.push_back({direction->from, POLLIN, 0});
      if (!direction->late.empty()) until = std::min(until, direction->late.front().due);
    }
  }
  const auto left = std::chrono::ceil<milliseconds>(until - Clock::now());
  poll(events.data(), events.size(), static_cast<int>(std::max(left, milliseconds(1)).count()));
  if (events.front().revents != 0) accept_one();
}

void Relay::accept_one() {
  FileDescriptor here(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  auto [there, error] = connect_within(loopback(target_), milliseconds(1000));
  if (error != 0) return;  // nobody listens: closes the caller's connection
  const int one = here.get();
  const int other = there.get();
  connections_.push_back(
      {std::move(here), std::move(there), {one, other, {}, 0}, {other, one, {}, 0}, false, false});
}

void Relay::read_into(Connection& connection, Direction& direction) {
  if (direction.size >= kMostOnTheWay) return;
  std::array<char, 1 << 16> buffer;
  const ssize_t count = recv(direction.from, buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (count > 0) {
    direction.late.push_back({Clock::now() + delay_, std::string(buffer.data(), static_cast<size_t>(count))});
    direction.size += static_cast<size_t>(count);
    connection.used = true;
  } else if (count == 0 || errno != EAGAIN) {
    connection.ended = true;
  }
}

void Relay::write_from(Connection& connection, Direction& direction) {
  while (!direction.late.empty() && direction.late.front().due <= Clock::now()) {
    std::string& bytes = direction.late.front().bytes;
    const ssize_t count = send(direction.to, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0) {
      connection.ended = connection.ended || errno != EAGAIN;
      return;
    }
    direction.size -= static_cast<size_t>(count);
    bytes.erase(0, static_cast<size_t>(count));
    if (bytes.empty()) direction.late.pop_front();
  }
}

}  // namespace tutti::testing

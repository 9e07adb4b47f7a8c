#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <functional>
#include <poll.h>
#include <span>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <utility>
#include <vector>

#include "tutti/base/file.h"
#include "tutti/base/net.h"
#include "tutti/net/listener.h"

namespace tutti::net {

// For tests: a port of 127.0.0.1 that forwards to another one, like a cable between two machines that may
// change bytes.
class Cable {
 public:
  enum class Way { Forth, Back };  // from the caller, and to it
  // Called from any thread for the bytes of a connection, which are numbered from 0 in each way. May change
  // them. The first connection is number 0.
  using Pass = std::function<void(int connection, Way way, uint64_t offset, std::span<char> bytes)>;

  Cable(int target, Pass pass)
      : target_(target), pass_(std::move(pass)), acceptor_([this] { accept_all(); }) {}
  ~Cable() {
    ended_ = true;
    acceptor_.join();
    for (std::thread& thread : threads_) thread.join();
  }
  Cable(const Cable&) = delete;
  Cable& operator=(const Cable&) = delete;

  int port() const { return listener_.port(); }
  std::string address() const { return "127.0.0.1:" + std::to_string(port()); }

 private:
  void accept_all() {
    while (!ended_) {
      FileDescriptor here = listener_.accept(kLook);
      if (here.get() < 0) continue;
      Connected there = connect_within(resolve("127.0.0.1", target_).addresses.front(), 100 * kLook);
      if (there.error != 0) continue;  // nobody listens: closes the caller's connection
      const int number = static_cast<int>(sockets_.size()) / 2;
      const int one = sockets_.emplace_back(std::move(here)).get();
      const int other = sockets_.emplace_back(std::move(there.socket)).get();
      threads_.emplace_back([=, this] { forward(number, Way::Forth, one, other); });
      threads_.emplace_back([=, this] { forward(number, Way::Back, other, one); });
    }
  }
  // Returns false if the cable is taken away.
  bool await(int socket, short event) const {
    pollfd ready{socket, event, 0};
    while (!ended_) {
      if (poll(&ready, 1, static_cast<int>(kLook.count())) > 0) return true;
    }
    return false;
  }
  void forward(int number, Way way, int from, int to) const {
    std::array<char, 1 << 16> bytes;
    uint64_t offset = 0;
    while (await(from, POLLIN)) {
      const ssize_t size = recv(from, bytes.data(), bytes.size(), MSG_DONTWAIT);
      if (size < 0 && errno == EAGAIN) continue;
      if (size <= 0) {
        shutdown(to, size == 0 ? SHUT_WR : SHUT_RDWR);
        return;
      }
      std::span<char> left(bytes.data(), static_cast<size_t>(size));
      pass_(number, way, offset, left);
      offset += left.size();
      while (!left.empty() && await(to, POLLOUT)) {
        const ssize_t sent = send(to, left.data(), left.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN) return;
        left = left.subspan(static_cast<size_t>(std::max<ssize_t>(sent, 0)));
      }
    }
  }

  static constexpr std::chrono::milliseconds kLook{20};
  const int target_;
  const Pass pass_;
  const Listener listener_{"127.0.0.1:0"};
  std::atomic<bool> ended_ = false;
  std::vector<FileDescriptor> sockets_;  // both: used by the acceptor, and by the destructor after it
  std::vector<std::thread> threads_;
  std::thread acceptor_;  // last: it uses all of the above
};

// A bit that is changed on the way, and how many bytes have passed, of the first connections of a cable.
class BitFlip {
 public:
  static constexpr size_t kConnections = 4;
  struct Place {
    int connection = 0;
    Cable::Way way = Cable::Way::Forth;
    uint64_t offset = UINT64_MAX;
    int bit = 0;
  };

  explicit BitFlip(Place place) : place_(place) {}

  void pass(int connection, Cable::Way way, uint64_t offset, std::span<char> bytes) {
    if (connection >= static_cast<int>(kConnections)) return;
    passed(connection, way) += bytes.size();
    if (connection != place_.connection || way != place_.way || place_.offset < offset) return;
    const uint64_t at = place_.offset - offset;
    if (at >= bytes.size()) return;
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << place_.bit));
    has_happened_ = true;
  }
  bool has_happened() const { return has_happened_; }
  std::atomic<uint64_t>& passed(int connection, Cable::Way way) {
    return passed_[2 * static_cast<size_t>(connection) + static_cast<size_t>(way)];
  }

 private:
  const Place place_;
  std::atomic<bool> has_happened_ = false;
  std::array<std::atomic<uint64_t>, 2 * kConnections> passed_{};
};

}  // namespace tutti::net

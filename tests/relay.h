#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <list>
#include <string>
#include <thread>

#include "tutti/base/file.h"

namespace tutti::testing {

// Simulates a bad cable: a port of 127.0.0.1 that forwards to another one, delays every byte, and can break
// its connections.
class Relay {
 public:
  Relay(int target, std::chrono::milliseconds delay);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  int port() const { return port_; }
  // Breaks every existing connection, even in the middle of a message. New ones may be made.
  void cut() { cut_ = true; }
  // The number of connections that carried data and were broken.
  int broken() const { return broken_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Late {
    Clock::time_point due;
    std::string bytes;
  };
  // The data on its way from one socket to the other.
  struct Direction {
    int from;
    int to;
    std::deque<Late> late;
    size_t size = 0;  // bytes in it
  };
  struct Connection {
    FileDescriptor here;
    FileDescriptor there;
    Direction forth;
    Direction back;
    bool ended = false;
    bool used = false;
  };

  void work();
  void wait();
  void accept_one();
  void read_into(Connection& connection, Direction& direction);
  static void write_from(Connection& connection, Direction& direction);

  const int target_;
  const std::chrono::milliseconds delay_;
  FileDescriptor listener_;
  int port_ = 0;
  std::list<Connection> connections_;  // used only by thread_
  std::atomic<bool> cut_ = false;
  std::atomic<int> broken_ = 0;
  std::atomic<bool> ended_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace tutti::testing

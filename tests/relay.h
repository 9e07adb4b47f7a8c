#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <list>
#include <string>
#include <thread>

#include "tutti/base/file.h"

namespace tutti::testing {

// A bad cable: a port of 127.0.0.1 behind which is another, with every byte late, and connections that can be
// broken.
class Relay {
 public:
  Relay(int target, std::chrono::milliseconds delay);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  int port() const { return port_; }
  // Breaks every connection that there is, in the middle of whatever it carries. New ones may be made.
  void cut() { cut_ = true; }
  // Connections that carried anything and were broken.
  int broken() const { return broken_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Late {
    Clock::time_point due;
    std::string bytes;
  };
  // From one socket to the other.
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
  std::list<Connection> connections_;  // of the thread
  std::atomic<bool> cut_ = false;
  std::atomic<int> broken_ = 0;
  std::atomic<bool> ended_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace tutti::testing

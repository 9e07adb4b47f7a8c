#pragma once

#include <string>
#include <vector>

#include "tests/tool.h"

namespace tutti::testing {

// What stands in for a machine: network, processes, /proc and host name of its own, and a first process that
// does nothing. When that ends, so does everything on the host, its network included; also where the test is
// killed.
class Host {
 public:
  explicit Host(const std::string& name);

  // The words that go in front of a command.
  std::vector<std::string> here() const;
  // The same for what has only the network and the name of this host.
  std::vector<std::string> network_here() const;
  // Runs to the end; fails the test where that is not well.
  void run(const std::vector<std::string>& command) const;
  // Takes down its end of the cable (see TwoHosts).
  void unplug() const;
  // The pid of the first process, as seen from outside.
  pid_t pid() const { return first_process_; }

 private:
  const std::string mark_;
  RunningProgram holder_;
  pid_t first_process_ = -1;
};

// Two of them with a cable in between, that carries so much each way. Ports are free: nobody else is there.
class TwoHosts {
 public:
  static constexpr const char* kEastAddress = "10.77.0.1";
  static constexpr const char* kWestAddress = "10.77.0.2";

  explicit TwoHosts(const std::string& rate = "1gbit");

  const Host& east() const { return east_; }
  const Host& west() const { return west_; }
  // Why there can be none here, or "".
  static std::string why_not();

 private:
  Host east_{"east"};
  Host west_{"west"};
};

}  // namespace tutti::testing

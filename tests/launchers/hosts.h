#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/tool.h"

namespace tutti::testing {

// A simulated machine: network, processes, /proc and host name of its own, and a first process that does
// nothing. When this process ends, so does everything on the host, including its network, even if the test is
// killed.
class Host {
 public:
  explicit Host(const std::string& name);

  // Returns the words to prefix to a command.
  std::vector<std::string> here() const;
  // Like here(), but the command uses only the network and the name of this host.
  std::vector<std::string> network_here() const;
  // Runs a command to its end; fails the test if the command fails.
  void run(const std::vector<std::string>& command) const;
  // Takes down its end of the cable (see TwoHosts), and brings it up again.
  void unplug() const;
  void plug() const;
  // The pid of the first process, as seen from outside.
  pid_t pid() const { return first_process_; }

 private:
  const std::string mark_;
  RunningProgram holder_;
  pid_t first_process_ = -1;
};

// Two hosts with a cable between them of this bandwidth in each direction. All ports are free.
class TwoHosts {
 public:
  static constexpr const char* kEastAddress = "10.77.0.1";
  static constexpr const char* kWestAddress = "10.77.0.2";

  explicit TwoHosts(const std::string& rate = "1gbit");

  const Host& east() const { return east_; }
  const Host& west() const { return west_; }
  // Returns why this machine cannot simulate hosts, or "".
  static std::string why_not();

 private:
  Host east_{"east"};
  Host west_{"west"};
};

// Hosts at one switch. Each knows the names of all, as the pods of Kubernetes and the nodes of a cluster do.
// All ports are free.
class NamedHosts {
 public:
  struct Names {
    std::string host;                 // its host name
    std::vector<std::string> others;  // more names by which all reach it
  };

  // At most 100 hosts.
  explicit NamedHosts(const std::vector<Names>& names);

  const Host& at(size_t index) const { return *hosts_.at(index); }
  // Returns why this machine cannot simulate them, or "".
  static std::string why_not() { return TwoHosts::why_not(); }

 private:
  void connect(size_t index) const;

  const TestFolder folder_;
  const Host switch_{"switch"};
  std::vector<std::unique_ptr<Host>> hosts_;
};

}  // namespace tutti::testing

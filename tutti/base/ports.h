#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "tutti/base/file.h"

namespace tutti {

struct PortRange {
  int first = 1;
  int last = 65535;
};

// Parses "2222-2300", or "2222" for one port. Throws an InvalidArgument that quotes the text.
PortRange parse_port_range(std::string_view text);

// Reserves different TCP ports of this machine. As long as this object lives, neither the kernel nor another
// object of this type assigns one of them to another program; but a program that is told the port can listen
// there (listen_at), also repeatedly. Until a program listens, connections to the port are refused.
class HeldPorts {
 public:
  HeldPorts() = default;
  // Takes the ports from this range; nullopt: if possible from outside the system's range of ephemeral ports.
  // Throws Overloaded if fewer than `count` ports are free, and InvalidArgument if the range has fewer.
  explicit HeldPorts(int count, const std::optional<PortRange>& range = std::nullopt);

  const std::vector<int>& numbers() const { return numbers_; }

 private:
  std::vector<FileDescriptor> sockets_;
  std::vector<int> numbers_;
};

// Returns ports that were free a moment ago, for tests and benchmarks.
std::vector<int> free_ports(int count);

}  // namespace tutti

#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tutti/base/file.h"

namespace tutti::net {

// Listens for connections at HOST:PORT; port 0 chooses a free one. For one thread.
class Listener {
 public:
  // Throws Overloaded if the port is in use; the error names the process that uses it if that is known.
  explicit Listener(const std::string& address);

  int port() const { return port_; }
  // For poll(2), beside other descriptors: a connection waits for accept() where one can be read.
  std::vector<int> descriptors() const;
  // Returns false if the process has almost no file descriptors left.
  bool has_spare_descriptors() const;
  // Returns the next connection, a non-blocking socket, or none if none came within `timeout`. As long as the
  // process has almost no file descriptors left, new connections wait in the system's queue.
  FileDescriptor accept(std::chrono::milliseconds timeout) const;
  // Admits no connections any more, and lets accept() return. From any thread.
  void stop() const;

 private:
  int port_ = 0;
  const std::vector<FileDescriptor> sockets_;
};

}  // namespace tutti::net

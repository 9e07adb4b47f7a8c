#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "tutti/base/address.h"
#include "tutti/base/file.h"

namespace tutti::rpc {

// Listens at an address and accepts connections for gRPC, in a thread of its own. gRPC's own listener stops
// for good as soon as the process has run out of file descriptors once. This one leaves some free for the
// rest of the process: meanwhile new connections wait in the system's queue, until others have been closed.
class Acceptor {
 public:
  // Called in the acceptor's thread; owns the connected socket from then on.
  using Take = std::function<void(int connected, int listener)>;

  // Port 0 chooses a free one. Throws Overloaded if the port is in use or no thread can be started.
  Acceptor(const Address& address, Take take);
  // Stops accepting connections.
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  int port() const { return port_; }

 private:
  void accept_all();
  void accept_from(int listener);

  int port_ = 0;
  const Take take_;
  const std::vector<FileDescriptor> listeners_;
  const FileDescriptor end_;  // an eventfd: readable when the thread has to end
  std::thread thread_;        // last: it uses all of the above
};

}  // namespace tutti::rpc

#pragma once

#include <chrono>
#include <string>

#include "tutti/cluster/context.h"
#include "tutti/ps/address_book.h"
#include "tutti/ps/service.h"
#include "tutti/rpc/host.h"

namespace tutti::ps {

// The parameter server that this task is: listens at its own address of the cluster, from the constructor on,
// until it is destroyed. Thread-safe.
class Server {
 public:
  // The context, of a task in a job of servers, outlives it.
  explicit Server(const Context& context);

  // "grpc://host:port".
  std::string target() const;
  // Waits so long, or until the job is done: the chief has said so, or end() was called, and everybody has
  // left; or somebody has called stop from elsewhere (`tutti stop`). InvalidArgument: the chief refuses this
  // server (address_book.h).
  bool join_for(std::chrono::milliseconds patience) {
    announcement_.check();
    return service_.join_for(patience);
  }
  // Nobody new is expected: the job is done when those who are here have left.
  void end() { service_.end(); }
  int callers() { return service_.callers(); }

 private:
  const Context& context_;
  Service service_;
  rpc::Host host_;  // after the service, so that it ends first
  Announcement announcement_;
};

}  // namespace tutti::ps

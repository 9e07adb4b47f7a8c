#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "tutti/cluster/context.h"
#include "tutti/ps/address_book.h"
#include "tutti/ps/service.h"
#include "tutti/rpc/host.h"

namespace tutti::ps {

// The parameter server of this task. Listens at the task's own address in the cluster from construction to
// destruction. Thread-safe.
class Server {
 public:
  // The task has to be in a job of servers. The context must outlive the server.
  // `optimizers` are those besides torch::optim's that the program may use.
  explicit Server(const Context& context, std::vector<ElementwiseOptimizer> optimizers = {});

  // "grpc://host:port".
  std::string target() const;
  // Waits up to `patience` for the end of the job and returns true when it is done: the chief or end() has
  // ended it and all callers have left, or `tutti stop` was called. Throws InvalidArgument if the chief
  // refuses this server (address_book.h).
  bool join_for(std::chrono::milliseconds patience) {
    announcement_.check();
    return service_.join_for(patience);
  }
  // Ends the job: it is done as soon as the present callers have left. New ones are not waited for.
  void end() { service_.end(); }
  int callers() { return service_.callers(); }

 private:
  const Context& context_;
  Service service_;
  rpc::Host host_;  // after the service, so that it ends first
  Announcement announcement_;
};

}  // namespace tutti::ps

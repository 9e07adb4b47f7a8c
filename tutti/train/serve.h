#pragma once

#include <string>
#include <vector>

#include "tutti/base/config.h"
#include "tutti/cluster/cluster_spec.h"
#include "tutti/cluster/context.h"
#include "tutti/ps/service.h"

namespace tutti {

// A parameter server inside another program. It receives the model from the chief.
//
//   tutti::Server server(tutti::ClusterSpec::parse("ps|h:2222,worker|h:2223;h:2224"), "ps", 0);
//   server.join();
class Server {
 public:
  // Starts to listen. Throws InvalidArgument if the cluster has no such task, or if its job is not one of
  // parameter servers.
  // `optimizers` are those besides torch::optim's that the chief may use (ElementwiseOptimizer).
  Server(const ClusterSpec& cluster, const std::string& job, int index, const RunConfig& config = {},
         std::vector<ElementwiseOptimizer> optimizers = {});
  explicit Server(const Context& context, std::vector<ElementwiseOptimizer> optimizers = {});

  // Returns "grpc://host:port".
  std::string target() const { return server_.target(); }
  // Returns when every worker has finished, or after `tutti stop`. If the configuration asks to stop on
  // signals, waits after a signal until the connected tasks have finished, since they may want to save a
  // checkpoint, and then throws Interrupted; a second signal ends the process.
  void join();

 private:
  const Context context_;
  ps::Server server_;
};

// Runs a serving task until the job is done: a parameter server if its job is one of servers, else a passive
// worker (passive/serve.h). `optimizers` are those of Server.
void serve(const Context& context, std::vector<ElementwiseOptimizer> optimizers = {});

}  // namespace tutti

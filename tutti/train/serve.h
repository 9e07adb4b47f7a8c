#pragma once

#include <string>

#include "tutti/base/flags.h"
#include "tutti/cluster/cluster_spec.h"
#include "tutti/cluster/context.h"
#include "tutti/ps/server.h"

namespace tutti {

// A parameter server in a program of one's own. What the model is it hears from the chief.
//
//   tutti::Server server(tutti::ClusterSpec::parse("ps|h:2222,worker|h:2223;h:2224"), "ps", 0);
//   server.join();
class Server {
 public:
  // Listens from here on. InvalidArgument: the cluster has no such task, or it is none of a job of servers.
  Server(const ClusterSpec& cluster, const std::string& job, int index, const Flags& flags = {});
  explicit Server(const Context& context);

  // "grpc://host:port".
  std::string target() const { return server_.target(); }
  // Until every worker has finished, or somebody has called `tutti stop`. A signal lets those finish that are
  // connected, since they may want to save what there is, and is thrown as Interrupted then; a second one
  // ends the process.
  void join();

 private:
  const Context context_;
  ps::Server server_;
};

// The life of a task that serves, until the job is done: of a parameter server in a job of these, else of a
// passive worker (passive/serve.h).
void serve(const Context& context);

}  // namespace tutti

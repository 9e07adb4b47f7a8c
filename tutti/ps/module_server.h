#pragma once

#include <string>

#include "tutti/cluster/context.h"
#include "tutti/ps/module_service.h"
#include "tutti/ps/served_module.h"
#include "tutti/rpc/host.h"

namespace tutti {

// Serves modules to other tasks, which use them as parts of their own models (remote_module.h):
//   tutti::ModuleServer server(context);
//   server.add("tail", tail, torch::optim::AdamOptions(1e-3));
//   server.join();
// Listens at this task's own address of the cluster, from the constructor on. Not thread-safe.
class ModuleServer {
 public:
  // The context must outlive the server. A task without an address in the cluster is an InvalidArgument.
  explicit ModuleServer(const Context& context, const ps::GraphLimits& limits = {});

  // Moves the module's parameters into flat vectors (Parameters); the optimiser updates them when a client
  // calls step(). All modules have to be added before join().
  template <class Net>
  void add(const std::string& name, const Net& net, const OptimizerOptions& optimizer) {
    add(name, make_served(net), optimizer);
  }
  void add(const std::string& name, const ServedModule& module, const OptimizerOptions& optimizer) {
    service_.add(name, module, optimizer);
  }

  // Serves until a client has called end() and all clients have left. Throws Timeout if no client connects
  // within --start-timeout, or PeerLost if a client left without end() and none has connected since then.
  void join();

  // HOST:PORT.
  const std::string& address() const { return address_; }

 private:
  const Context& context_;
  const std::string address_;
  ps::ModuleService service_;
  rpc::Host host_;  // last, so that it ends first
};

}  // namespace tutti

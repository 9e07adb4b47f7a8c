#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/base/agreement.h"
#include "tutti/base/log.h"
#include "tutti/params/optimizer.h"
#include "tutti/params/parameters.h"
#include "tutti/ps/wire.h"
#include "tutti/remote/module_server.h"
#include "tutti/rpc/host.h"
#include "tutti/store/named_tensors.h"

namespace tutti::ps {

// Returns everything of a module that a checkpoint has to hold, by name: trained and frozen parameters,
// buffers, the optimiser's slots ("exp_avg/conv1.weight") and its number of steps ("adam/steps"). The
// module's tensors are not copied.
store::NamedTensors state_of(const Parameters& parameters, const Optimizer& optimizer);

// Restores such a state. If it does not match the module and the optimiser, throws an InvalidArgument that
// names the first difference, and changes nothing.
void load_state(Parameters& parameters, Optimizer& optimizer, const store::NamedTensors& state);

// Serves modules that clients on other tasks use as parts of their models. Each connection uses one module:
//   attach     waits until all modules are added; returns the module's plan, the optimiser's name, and the
//              kernels that compute here, which the client compares with its own
//   forward    takes inputs and the state of the client's generator, so that dropout draws the same
//              numbers as on the client; returns outputs and the new state. Keeps the graph on request
//   backward   takes the gradients of a graph's outputs and returns the gradients of its inputs; gradients
//              of the parameters are accumulated here. Drops the graph unless the client retains it
//   zero_grad, step, sha256
//   state, load  parameters, buffers and the optimiser's state, by name
//   end        ends the job when all clients have left
// Every request may name graphs to drop; the graphs of a closed connection are dropped as well. Computations
// run one at a time. Thread-safe.
class ModuleService final : public rpc::Service {
 public:
  // `kernels` has the kernels of the serving task and its name, which is for error messages too.
  explicit ModuleService(Agreement kernels, const GraphLimits& limits = {});

  // To be called before open(). Throws InvalidArgument if the name is taken, Unimplemented if the module is
  // not on the CPU.
  void add(const std::string& name, const ServedModule& module, const OptimizerOptions& optimizer);
  // Announces that all modules have been added.
  void open();

  rpc::Message serve(const rpc::Caller& caller, const std::string& method,
                     const rpc::Message& request) override;
  void gone(const rpc::Caller& caller) override;

  // Returns when a client has called end() and all clients have left. Throws Timeout if no client ever
  // attached, or PeerLost if all have left without end(), and none has connected for `patience`. Logs that it
  // waits for a client.
  void await_end(std::chrono::milliseconds patience, const Log& log);
  // Returns the number of connections, including those that wait for open().
  size_t callers() const;
  // Return the number and the memory of the graphs that are kept for a backward.
  size_t graphs() const;
  int64_t graph_bytes() const;

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Tensors = ServedModule::Tensors;

  struct Served {
    Served(std::string name, const ServedModule& module, const OptimizerOptions& optimizer);

    const std::string name;
    const ServedModule module;
    Parameters parameters;
    Optimizer optimizer;
  };
  struct Graph {
    uint64_t caller = 0;
    Tensors inputs = {};
    Tensors outputs = {};  // those that require a gradient
    int64_t bytes = 0;
  };
  struct Call {
    uint64_t caller;
    Served& served;
    const rpc::Message& request;
  };
  using Method = rpc::Message (ModuleService::*)(const Call&);

  rpc::Message dispatch(const rpc::Caller& caller, const std::string& method, const rpc::Message& request);
  rpc::Message attach(const rpc::Caller& caller, const Json& head);
  Served& module_of(const rpc::Caller& caller) const;
  rpc::Message forward(const Call& call);
  static Tensors run(const Call& call, Graph& graph, bool wants_graph, Reader& reader);
  rpc::Message backward(const Call& call);
  rpc::Message zero_grad(const Call& call);
  rpc::Message step(const Call& call);
  rpc::Message sha256(const Call& call);
  rpc::Message state(const Call& call);
  rpc::Message load(const Call& call);
  rpc::Message end(const Call& call);
  int64_t keep(std::shared_ptr<const Graph> graph);
  std::shared_ptr<const Graph> graph_of(const Call& call, int64_t id, bool retain);
  void forget(const rpc::Caller& caller, const Json& head);
  void drop(const Lock& lock, int64_t id);
  void require_room() const;

  const Agreement kernels_;
  const GraphLimits limits_;

  std::mutex compute_;  // held while anything is computed; taken before mutex_
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::unique_ptr<Served>> modules_;  // all below: guarded by mutex_
  std::map<uint64_t, Served*> callers_;                     // attached callers; null while attach waits
  std::map<int64_t, std::shared_ptr<const Graph>> graphs_;
  std::string last_;  // the client that attached last
  int64_t graph_bytes_ = 0;
  int64_t graphs_so_far_ = 0;
  bool open_ = false;
  bool ended_ = false;
};

}  // namespace tutti::ps

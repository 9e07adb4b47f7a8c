#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tutti/params/optimizer.h"
#include "tutti/params/parameters.h"
#include "tutti/ps/served_module.h"
#include "tutti/ps/wire.h"
#include "tutti/rpc/host.h"

namespace tutti::ps {

// What forwards whose backward is still to come may hold, those of all clients together. A forward beyond it
// is refused as Overloaded.
struct GraphLimits {
  size_t graphs = 4096;
  int64_t bytes = int64_t{4} << 30;
};

// Modules that clients on other tasks use as parts of theirs. A connection is of one module:
//   attach     waits until all modules are added; answers what the module is
//   forward    inputs, and the state of the client's generator, so that dropout draws what it would draw
//              there; answers the outputs and the state after it. Keeps the graph where the client wants one
//   backward   gradients of the outputs of a graph; answers those of its inputs. Those of the parameters add
//              up here. The graph is gone then, unless the client retains it
//   zero_grad, step, sha256
//   state, load  parameters, buffers and what the optimiser has learnt, by name
//   end        the job is done when everybody has left
// Every request may name graphs to be forgotten; those of a connection that ends are forgotten. What is
// computed is computed one after the other. Thread-safe.
class ModuleService final : public rpc::Service {
 public:
  // `task` is who serves, for errors.
  explicit ModuleService(std::string task, const GraphLimits& limits = {});

  // Before open(). InvalidArgument: the name is taken, or the module is not on the CPU.
  void add(const std::string& name, const ServedModule& module, const OptimizerOptions& optimizer);
  // All modules are there.
  void open();

  rpc::Message serve(const rpc::Caller& caller, const std::string& method,
                     const rpc::Message& request) override;
  void gone(const rpc::Caller& caller) override;

  // Returns when a client has said end() and all have left. Timeout or PeerLost: nobody was there for so
  // long.
  void await_end(std::chrono::milliseconds patience);
  // Connections, those included that wait for open().
  size_t callers() const;
  // What is kept for backwards to come.
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
    Tensors outputs = {};  // those that have a gradient
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

  const std::string task_;
  const GraphLimits limits_;

  std::mutex compute_;  // held while anything is computed; taken before mutex_
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::unique_ptr<Served>> modules_;  // all below: guarded by mutex_
  std::map<uint64_t, Served*> callers_;                     // that are attached
  std::map<int64_t, std::shared_ptr<const Graph>> graphs_;
  std::string last_;  // who has left last
  int64_t graph_bytes_ = 0;
  int64_t graphs_so_far_ = 0;
  bool open_ = false;
  bool ended_ = false;
};

}  // namespace tutti::ps

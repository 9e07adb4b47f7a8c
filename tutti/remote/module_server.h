#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/cluster/context.h"
#include "tutti/params/agreement.h"
#include "tutti/params/optimizer.h"
#include "tutti/params/parameters.h"
#include "tutti/ps/wire.h"
#include "tutti/rpc/host.h"
#include "tutti/store/safetensors.h"

namespace tutti {

// A module and its forward, as they are served to other tasks.
struct ServedModule {
  using Tensors = std::vector<torch::Tensor>;

  std::shared_ptr<torch::nn::Module> module;
  std::function<Tensors(const Tensors& inputs)> forward;
};

namespace internal {

using Tensors = ServedModule::Tensors;

inline Tensors outputs_of(torch::Tensor output) { return {std::move(output)}; }
inline Tensors outputs_of(Tensors outputs) { return outputs; }
template <class... Outputs>
Tensors outputs_of(const std::tuple<Outputs...>& outputs) {
  return std::apply([](const auto&... each) { return Tensors{each...}; }, outputs);
}

// Calls Net::forward with one, two or three tensors.
template <class Net>
Tensors call_forward(Net& net, const Tensors& in) {
  if constexpr (requires { outputs_of(net.forward(in[0])); }) {
    if (in.size() == 1) return outputs_of(net.forward(in[0]));
  }
  if constexpr (requires { outputs_of(net.forward(in[0], in[1])); }) {
    if (in.size() == 2) return outputs_of(net.forward(in[0], in[1]));
  }
  if constexpr (requires { outputs_of(net.forward(in[0], in[1], in[2])); }) {
    if (in.size() == 3) return outputs_of(net.forward(in[0], in[1], in[2]));
  }
  fail(ErrorKind::InvalidArgument, "its forward does not take {} tensors", in.size());
}

}  // namespace internal

// Net::forward has to take up to three tensors and return one tensor, or several in a vector or tuple. For
// any other signature, fill in a ServedModule with a function of your own.
template <class Net>
ServedModule make_served(std::shared_ptr<Net> net) {
  return {net, [net](const ServedModule::Tensors& in) { return internal::call_forward(*net, in); }};
}

template <class Net>
ServedModule make_served(const torch::nn::ModuleHolder<Net>& net) {
  return make_served(net.ptr());
}

}  // namespace tutti

namespace tutti::ps {

// Returns everything of a module that a checkpoint has to hold, by name: trained and frozen parameters,
// buffers, the optimiser's slots ("exp_avg/conv1.weight") and its number of steps ("adam/steps"). The
// module's tensors are not copied.
std::vector<store::NamedTensor> state_of(const Parameters& parameters, const Optimizer& optimizer);

// Restores such a state. If it does not match the module and the optimiser, throws an InvalidArgument that
// names the first difference, and changes nothing.
void load_state(Parameters& parameters, Optimizer& optimizer, const std::vector<store::NamedTensor>& state);

// Limits on the graphs, of all clients together, that are kept until their backward. A forward beyond them is
// refused with Overloaded.
struct GraphLimits {
  size_t graphs = 4096;
  int64_t bytes = int64_t{4} << 30;
};

// Serves modules that clients on other tasks use as parts of their models. Each connection uses one module:
//   attach     waits until all modules are added; returns the module's plan, the optimiser's name, and the
//              kernels that compute here, which the client compares with its own
//   forward    takes inputs and the state of the client's generator, so that dropout draws the same
//              numbers as on the client; returns outputs and the new state. Keeps the graph on request
//   backward   takes gradients of the outputs of a graph and returns those of its inputs; gradients of the
//              parameters are accumulated here. Drops the graph unless the client retains it
//   zero_grad, step, sha256
//   state, load  parameters, buffers and the optimiser's state, by name
//   end        ends the job when all clients have left
// Every request may name graphs to drop; the graphs of a closed connection are dropped as well. Computations
// run one at a time. Thread-safe.
class ModuleService final : public rpc::Service {
 public:
  // The kernels are those of the serving task, whose name is for error messages too.
  explicit ModuleService(TaskKernels kernels, const GraphLimits& limits = {});

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

  const TaskKernels kernels_;
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

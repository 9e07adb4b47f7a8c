#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include "tutti/base/error.h"
#include "tutti/cluster/context.h"
#include "tutti/params/optimizer_options.h"

namespace tutti {

namespace rpc {
class Host;
}

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

// Limits on the graphs, of all clients together, that are kept until their backward. A forward beyond them is
// refused with Overloaded.
struct GraphLimits {
  size_t graphs = 4096;
  int64_t bytes = int64_t{4} << 30;
};

class ModuleService;

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
  ~ModuleServer();

  // Moves the module's parameters into flat vectors (Parameters); the optimiser updates them when a client
  // calls step(). All modules have to be added before join().
  template <class Net>
  void add(const std::string& name, const Net& net, const OptimizerOptions& optimizer) {
    add(name, make_served(net), optimizer);
  }
  void add(const std::string& name, const ServedModule& module, const OptimizerOptions& optimizer);

  // Serves until a client has called end() and all clients have left. Throws Timeout if no client connects
  // within --start-timeout, or PeerLost if a client left without end() and none has connected since then.
  void join();

  // HOST:PORT.
  const std::string& address() const { return address_; }

 private:
  const Context& context_;
  const std::string address_;
  const std::unique_ptr<ps::ModuleService> service_;
  const std::unique_ptr<rpc::Host> host_;  // last, so that it ends first
};

}  // namespace tutti

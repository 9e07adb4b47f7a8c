#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <torch/types.h>

#include "tutti/cluster/context.h"
#include "tutti/store/named_tensors.h"

namespace tutti {

// A part of a model that is served by another task (module_server.h):
//   tutti::RemoteModule tail(context, "/job:worker/task:1", "tail");
//   auto loss = cross_entropy(tail.forward(front->forward(x)), labels);
//   loss.backward();
//   tail.step();
// Autograd runs forward and backward across the connection, and dropout uses the state of this process's
// generator, so two halves on two tasks train to the same bits as both on one. The serving task keeps the
// graph of a forward until its backward, or until the last of its outputs is destroyed; under NoGradGuard it
// keeps none. Inputs may be on any device; gradients of gradients are Unimplemented.
//
// Errors of the remote part arrive with their own kind and the name of the task, also from backward(). A lost
// task is a PeerLost, and a task that does not answer within --timeout a Timeout. After that every call on
// this handle fails at once. A new handle can connect to the restarted task and restore its parameters by
// load().
//
// A handle: copies refer to the same part. Thread-safe; calls are made one after the other.
class RemoteModule {
 public:
  using Tensors = std::vector<torch::Tensor>;

  // Waits up to --start-timeout until the task serves, with a log line every ten seconds. InvalidArgument:
  // `device` does not name a single task of the cluster, or the task has no such module.
  RemoteModule(const Context& context, std::string_view device, const std::string& name);

  // The first is for modules with one input and one output, the second for all modules.
  torch::Tensor forward(const torch::Tensor& input);
  Tensors forward(const Tensors& inputs);

  // Take effect with the next forward.
  void train(bool on = true);
  void eval() { train(false); }

  // Act on the parameters of the serving task. The optimiser is the one that the module was added with.
  void zero_grad();
  void step(std::optional<double> learning_rate = {});
  // As in class Parameters.
  std::string sha256();
  const std::vector<std::string>& plan() const;

  // The contents of a checkpoint: parameters, buffers, and the optimiser's state, by name.
  store::NamedTensors state();
  // Restores that state. A state of another module or optimiser is an InvalidArgument and changes nothing.
  void load(const store::NamedTensors& state);

  // Allows the serving task to end when all clients have left. Has to be the last call.
  void end();

 private:
  class Connection;
  struct Backward;

  std::shared_ptr<Connection> connection_;  // shared by the graphs whose backward is still to come
};

}  // namespace tutti

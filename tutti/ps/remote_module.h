#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <torch/types.h>

#include "tutti/cluster/context.h"
#include "tutti/store/named_tensor.h"

namespace tutti {

// A part of a model that is on another task, which serves it (module_server.h):
//   tutti::RemoteModule tail(context, "/job:worker/task:1", "tail");
//   auto loss = cross_entropy(tail.forward(front->forward(x)), labels);
//   loss.backward();
//   tail.step();
// Forward and backward cross the wire through autograd, and dropout draws from this process's generator, so
// that two halves on two tasks train to the bits of both on one. Forwards under NoGradGuard keep no graph
// there; the others keep it until their backward, or until the last of their outputs is gone. Inputs may be
// on any device; gradients of gradients are Unimplemented.
//
// Errors of the remote part arrive as what they are there, with the name of the task, also from backward(). A
// task that is lost is a PeerLost, one that does not answer within --timeout a Timeout: this handle is of no
// use then, and says so at once. Another one may find the task again, with parameters that load() sets back.
//
// A handle: copies are the same part. Thread-safe: one call after the other.
class RemoteModule {
 public:
  using Tensors = std::vector<torch::Tensor>;

  // Waits for the task to serve, for --start-timeout, and says every ten seconds that it does.
  // InvalidArgument: it is not one task of the cluster, or has no such module.
  RemoteModule(const Context& context, std::string_view device, const std::string& name);

  // Of a module with one input and one output, and of any.
  torch::Tensor forward(const torch::Tensor& input);
  Tensors forward(const Tensors& inputs);

  // From the next forward on.
  void train(bool on = true);
  void eval() { train(false); }

  // Of the parameters there. The optimiser is the one that the module was added with.
  void zero_grad();
  void step(std::optional<double> learning_rate = {});
  // As Parameters tells them.
  std::string sha256();
  const std::vector<std::string>& plan() const;

  // All that a checkpoint has to hold: parameters, buffers, and what the optimiser has learnt, by name.
  std::vector<store::NamedTensor> state();
  // Sets them back. What is not of this module and optimiser is an InvalidArgument, and changes nothing.
  void load(const std::vector<store::NamedTensor>& state);

  // The task may end when everybody who uses its modules has left: the last thing to be called.
  void end();

 private:
  class Connection;
  struct Backward;

  std::shared_ptr<Connection> connection_;  // shared by the graphs whose backward is still to come
};

}  // namespace tutti

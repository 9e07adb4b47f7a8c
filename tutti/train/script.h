#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "tutti/base/json.h"
#include "tutti/train/trainable.h"

namespace torch::jit {
struct CompilationUnit;
struct Module;
}  // namespace torch::jit

namespace tutti {

// The computation of a model as a TorchScript program, which can be sent to a process that does not have the
// model. It is executed operation by operation like the same code in C++, with the same bits.
//
// The program has a function `loss`, which returns the mean loss over a batch, or (loss, predictions), and
// may have a function `predict`. The names of their arguments determine the values: a parameter or buffer,
// with '_' in place of each '.' in its name, or a tensor of the batch; any other argument keeps its default
// value.
class Script {
 public:
  // Functions that take parameters as arguments:
  //   def loss(hidden_weight, hidden_bias, x, y):
  //       return torch.mse_loss(torch.linear(x, hidden_weight, hidden_bias), y)
  // A text that does not compile is an InvalidArgument with the compiler's message.
  static Script from_text(const std::string& text);
  // A module with its parameters: a .pt file written by torch.jit.save, or the content of one. If it has no
  // `predict`, its `forward` is used instead.
  static Script from_file(const std::string& path);
  static Script from_bytes(const std::string& bytes);

  bool is_module() const { return module_ != nullptr; }
  // The original text or bytes, for from_text() or from_bytes() in another process.
  const std::string& content() const { return content_; }

 private:
  friend Trainable script_model(const Script& script);
  friend Trainable script_model(const std::shared_ptr<torch::nn::Module>& module, const Script& script);
  Script() = default;

  std::string content_;
  std::shared_ptr<torch::jit::CompilationUnit> functions_;  // one of the two is set
  std::shared_ptr<torch::jit::Module> module_;
};

// A model from a script that is a module.
Trainable script_model(const Script& script);
// A model with the parameters of `module`, computed by a script that consists of functions.
Trainable script_model(const std::shared_ptr<torch::nn::Module>& module, const Script& script);

// The names, types and shapes of a module's parameters and buffers, from which another process can create the
// same module with other values.
Json outline_of(const torch::nn::Module& module);
std::shared_ptr<torch::nn::Module> module_of(const Json& outline);

}  // namespace tutti

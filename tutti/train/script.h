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

// What a model computes as a program in TorchScript, so that it can be sent to a process that has never seen
// the model. It is carried out operation by operation, as the same code in C++ would be, with the same bits.
//
// The program has a `loss`, which returns the mean loss over a batch, or (loss, predictions), and may have a
// `predict`. What their arguments are called says what they get: a parameter or buffer, with '_' for each '.'
// in its name, or a tensor of the batch; else what it is by default.
class Script {
 public:
  // Functions that take parameters as arguments:
  //   def loss(hidden_weight, hidden_bias, x, y):
  //       return torch.mse_loss(torch.linear(x, hidden_weight, hidden_bias), y)
  // What does not compile is an InvalidArgument with the compiler's words.
  static Script from_text(const std::string& text);
  // A module with its parameters: a .pt that torch.jit.save has written, or its content. Where it has no
  // `predict`, that is its `forward`.
  static Script from_file(const std::string& path);
  static Script from_bytes(const std::string& bytes);

  bool is_module() const { return module_ != nullptr; }
  // As it was given: for the other end's from_text() or from_bytes().
  const std::string& content() const { return content_; }

 private:
  friend Trainable script_model(const Script& script);
  friend Trainable script_model(const std::shared_ptr<torch::nn::Module>& module, const Script& script);
  Script() = default;

  std::string content_;
  std::shared_ptr<torch::jit::CompilationUnit> functions_;  // one of the two
  std::shared_ptr<torch::jit::Module> module_;
};

// The module that a script brings along.
Trainable script_model(const Script& script);
// A module for its parameters alone: what is computed from them says the script, which is functions.
Trainable script_model(const std::shared_ptr<torch::nn::Module>& module, const Script& script);

// The names, types and shapes of what a module has, from which another process can make one that is the same
// but for the values.
Json outline_of(const torch::nn::Module& module);
std::shared_ptr<torch::nn::Module> module_of(const Json& outline);

}  // namespace tutti

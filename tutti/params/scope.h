#pragma once

#include <functional>
#include <memory>
#include <string>

#include <torch/nn/module.h>
#include <torch/types.h>

namespace tutti::params {

// Creates parameters that several parts of a program share by name, like TensorFlow's variable scopes. They
// are created in a module, which can be passed to Parameters, Trainer and so on like any other module; nested
// scopes are its submodules. For example
//   params::Scope scope(net);
//   auto w = scope.nested("hidden").get("w", {1, 16}, init);
// creates net's parameter "hidden.w". A handle. Thread-compatible.
class Scope {
 public:
  // Initialises a new parameter in place: [](const auto& w) { torch::nn::init::uniform_(w, 0, 1); }.
  using Init = std::function<void(const torch::Tensor& parameter)>;

  // Creates parameters in this module, and shares its ownership.
  explicit Scope(std::shared_ptr<torch::nn::Module> module);

  // Returns the nested scope of this name: the existing submodule, or a new one. With reuse(), a submodule
  // that does not exist is an InvalidArgument.
  Scope nested(const std::string& name) const;
  // Returns the same scope in a mode in which get() returns existing parameters and creates none; this also
  // applies to scopes nested in it.
  Scope reuse() const;

  // Creates the parameter; `init` fills it, else it is zero. `options` set its type (float32 by default) and
  // whether it is trained (by default if its type is a floating type). If it exists already, this is an
  // InvalidArgument. With reuse(), returns the existing parameter; if it does not exist, or has another shape
  // or type, this is an InvalidArgument.
  torch::Tensor get(const std::string& name, torch::IntArrayRef shape, const Init& init = {},
                    const torch::TensorOptions& options = {}) const;

 private:
  std::string full(const std::string& name) const;
  torch::Tensor create(const std::string& name, torch::IntArrayRef shape, const Init& init,
                       const torch::TensorOptions& options) const;

  std::shared_ptr<torch::nn::Module> module_;  // of this scope
  std::string name_;                           // "hidden.first"; "" for the outermost scope
  bool reuse_ = false;
};

}  // namespace tutti::params

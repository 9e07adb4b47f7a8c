#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>

namespace tutti::params {

// Initialises a new parameter in place: [](const auto& w) { torch::nn::init::uniform_(w, 0, 1); }.
using Init = std::function<void(const torch::Tensor& parameter)>;

// A line of the program. As a default argument, here() gives the line of the call. (std::source_location is
// not supported by the version of clang that checks this code.)
struct SourceLine {
  const char* file;
  int line;

  static SourceLine here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

// Creates parameters that several parts of a program share by name. They are created in a module, which can
// be passed to Parameters, Trainer and so on like any other module; nested scopes are its submodules. For
// example
//   params::Scope scope(net);
//   auto w = scope.nested("hidden").get("w", {1, 16}, init);
// creates net's parameter "hidden.w". `options` set its type (float32 by default) and whether it is trained
// (by default if its type is a floating type). A handle; scopes that are derived from one another share the
// record of where each parameter was created. Thread-compatible.
class Scope {
 public:
  // Creates parameters in this module, and shares its ownership.
  explicit Scope(std::shared_ptr<torch::nn::Module> module);

  // Returns the nested scope of this name: the existing submodule, or a new one.
  Scope nested(const std::string& name) const;
  // Returns the same scope in a mode in which get() returns existing parameters and creates none; this also
  // applies to scopes nested in it.
  Scope reuse() const;

  // Creates the parameter. If it exists already, this is an InvalidArgument that says where it was created.
  // With reuse(), returns the existing parameter without calling `init`; if it does not exist, or has another
  // shape or type, this is an InvalidArgument that suggests the nearest name.
  torch::Tensor get(const std::string& name, torch::IntArrayRef shape, const Init& init = {},
                    const torch::TensorOptions& options = {},
                    const SourceLine& where = SourceLine::here()) const;
  torch::Tensor get(const std::string& name, std::initializer_list<int64_t> shape, const Init& init = {},
                    const torch::TensorOptions& options = {},
                    const SourceLine& where = SourceLine::here()) const {
    return get(name, torch::IntArrayRef(shape), init, options, where);
  }

  // The full name, such as "hidden.w"; "" for the outermost scope.
  const std::string& name() const { return name_; }

 private:
  struct Tree;

  std::string full(const std::string& name) const;
  torch::Tensor create(const std::string& name, torch::IntArrayRef shape, const Init& init,
                       const torch::TensorOptions& options, const SourceLine& where) const;
  void require_alike(const torch::Tensor& there, const std::string& name, torch::IntArrayRef shape,
                     const torch::TensorOptions& options) const;
  std::string created_at(const std::string& name) const;

  std::shared_ptr<Tree> tree_;                 // shared by handles that are derived from one another
  std::shared_ptr<torch::nn::Module> module_;  // of this scope; null if a reused one does not exist
  std::string name_;
  bool reuse_ = false;
};

}  // namespace tutti::params

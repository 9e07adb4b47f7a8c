#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>

namespace tutti::params {

// Gives a new parameter its values, in place: [](const auto& w) { torch::nn::init::uniform_(w, 0, 1); }.
using Init = std::function<void(const torch::Tensor& parameter)>;

// A line of a program: where a call stands that has it as a default argument. (std::source_location is beyond
// the clang that checks us.)
struct SourceLine {
  const char* file;
  int line;

  static SourceLine here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

// Parameters that several parts of a program share by name. They are created in a module, which can be given
// to Parameters, Trainer and all else as any other; nested scopes are submodules of it, so that
//   params::Scope scope(net);
//   auto w = scope.nested("hidden").get("w", {1, 16}, init);
// is net's parameter "hidden.w". `options` say its type, by default float32, and whether it is trained, as by
// default what is of a floating type is. A handle; those that come
// from one another know where each parameter was created. Thread-compatible.
class Scope {
 public:
  // Fills this module, and keeps it alive.
  explicit Scope(std::shared_ptr<torch::nn::Module> module);

  // The scope of this name inside: the submodule that has it, or a new one.
  Scope nested(const std::string& name) const;
  // The same scope, in which get() creates nothing but gives what is there; so do those nested in it.
  Scope reuse() const;

  // Creates the parameter. One that is there already is an InvalidArgument that says where it was created.
  // With reuse() it is the other way round: one that is not there, or has another shape or type, is the
  // error, which says so and suggests the nearest name; `init` is not called.
  torch::Tensor get(const std::string& name, torch::IntArrayRef shape, const Init& init = {},
                    const torch::TensorOptions& options = {},
                    const SourceLine& where = SourceLine::here()) const;
  torch::Tensor get(const std::string& name, std::initializer_list<int64_t> shape, const Init& init = {},
                    const torch::TensorOptions& options = {},
                    const SourceLine& where = SourceLine::here()) const {
    return get(name, torch::IntArrayRef(shape), init, options, where);
  }

  // Whole, such as "hidden.w"; of the outermost scope: "".
  const std::string& name() const { return name_; }

 private:
  struct Tree;

  std::string full(const std::string& name) const;
  torch::Tensor create(const std::string& name, torch::IntArrayRef shape, const Init& init,
                       const torch::TensorOptions& options, const SourceLine& where) const;
  void require_alike(const torch::Tensor& there, const std::string& name, torch::IntArrayRef shape,
                     const torch::TensorOptions& options) const;
  std::string created_at(const std::string& name) const;

  std::shared_ptr<Tree> tree_;                 // shared by the handles that come from one another
  std::shared_ptr<torch::nn::Module> module_;  // of this scope; null where a reused one does not exist
  std::string name_;
  bool reuse_ = false;
};

}  // namespace tutti::params

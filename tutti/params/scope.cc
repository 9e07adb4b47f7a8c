#include "tutti/params/scope.h"

#include <map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/base/type_name.h"
#include "tutti/params/parameters.h"

namespace tutti::params {
namespace {

void require_name(const std::string& name, const char* of_what) {
  if (name.empty() || name.find('.') != std::string::npos)
    fail(ErrorKind::InvalidArgument,
         "'{}' is not a valid name of a {}: it must not be empty or contain '.', which joins the names of "
         "nested scopes",
         name, of_what);
}

torch::ScalarType type_in(const torch::TensorOptions& options) {
  return c10::typeMetaToScalarType(options.dtype());
}

}  // namespace

// The data that handles derived from one another share.
struct Scope::Tree {
  std::shared_ptr<torch::nn::Module> root;
  std::map<std::string, std::string> created_at;  // "file.cc:12" by the whole name
};

Scope::Scope(std::shared_ptr<torch::nn::Module> module)
    : tree_(std::make_shared<Tree>()), module_(std::move(module)) {
  if (!module_) fail(ErrorKind::InvalidArgument, "a scope needs a module to create its parameters in");
  tree_->root = module_;
}

std::string Scope::full(const std::string& name) const { return name_.empty() ? name : name_ + "." + name; }

Scope Scope::nested(const std::string& name) const {
  require_name(name, "scope");
  Scope inner = *this;
  inner.name_ = full(name);
  inner.module_ = nullptr;
  if (!module_) return inner;
  const auto children = module_->named_children();
  if (const auto* child = children.find(name)) {
    inner.module_ = *child;
  } else if (!reuse_) {
    if (module_->named_parameters(/*recurse=*/false).contains(name))
      fail(ErrorKind::InvalidArgument, "the scope {} cannot be created: a parameter has its name{}",
           inner.name_, created_at(inner.name_));
    inner.module_ = module_->register_module(name, std::make_shared<torch::nn::Module>(name));
  }
  return inner;
}

Scope Scope::reuse() const {
  Scope same = *this;
  same.reuse_ = true;
  return same;
}

// Returns ", created at net.cc:12", or "" if the parameter was registered by other means.
std::string Scope::created_at(const std::string& name) const {
  const auto found = tree_->created_at.find(name);
  return found == tree_->created_at.end() ? "" : ", created at " + found->second;
}

torch::Tensor Scope::get(const std::string& name, torch::IntArrayRef shape, const Init& init,
                         const torch::TensorOptions& options, const SourceLine& where) const {
  require_name(name, "parameter");
  const auto own = module_ ? module_->named_parameters(/*recurse=*/false)
                           : torch::OrderedDict<std::string, torch::Tensor>();
  const torch::Tensor* there = own.find(name);
  if (!reuse_) {
    if (there != nullptr)
      fail(ErrorKind::InvalidArgument,
           "the parameter {} exists already{}: give the second one another name, or share the first one with "
           "reuse()",
           full(name), created_at(full(name)));
    return create(name, shape, init, options, where);
  }
  if (there == nullptr) {
    fail(ErrorKind::InvalidArgument,
         "there is no parameter {} to share: create it first, in a scope without reuse(){}", full(name),
         did_you_mean(full(name), tree_->root->named_parameters().keys()));
  }
  require_alike(*there, full(name), shape, options);
  return *there;
}

torch::Tensor Scope::create(const std::string& name, torch::IntArrayRef shape, const Init& init,
                            const torch::TensorOptions& options, const SourceLine& where) const {
  if (module_->named_buffers(/*recurse=*/false).contains(name) || module_->named_children().contains(name))
    fail(ErrorKind::InvalidArgument,
         "the parameter {} cannot be created: a buffer or submodule has its name; choose another",
         full(name));
  const torch::ScalarType type = type_in(options);
  const torch::Tensor parameter =
      torch::zeros(shape, torch::TensorOptions().dtype(type).device(options.device()));
  if (init) {
    const torch::NoGradGuard no_grad;
    init(parameter);
  }
  module_->register_parameter(name, parameter,
                              options.requires_grad_opt().value_or(c10::isFloatingType(type)));
  tree_->created_at[full(name)] = fmt::format("{}:{}", where.file, where.line);
  return parameter;
}

void Scope::require_alike(const torch::Tensor& there, const std::string& name, torch::IntArrayRef shape,
                          const torch::TensorOptions& options) const {
  if (there.sizes() == shape && there.scalar_type() == type_in(options)) return;
  fail(ErrorKind::InvalidArgument,
       "the parameter {} cannot be shared as {}[{}]: it is {}{}; ask for its own type and shape, or create "
       "another parameter",
       name, type_name(type_in(options)), fmt::join(shape, ","), describe(there), created_at(name));
}

}  // namespace tutti::params

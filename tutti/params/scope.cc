#include "tutti/params/scope.h"

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

torch::ScalarType type_in(const torch::TensorOptions& options) {
  return c10::typeMetaToScalarType(options.dtype());
}

}  // namespace

Scope::Scope(std::shared_ptr<torch::nn::Module> module) : module_(std::move(module)) {
  if (!module_) fail(ErrorKind::InvalidArgument, "a scope needs a module to create its parameters in");
}

std::string Scope::full(const std::string& name) const { return name_.empty() ? name : name_ + "." + name; }

Scope Scope::nested(const std::string& name) const {
  Scope inner = *this;
  inner.name_ = full(name);
  const auto children = module_->named_children();
  if (const auto* child = children.find(name)) {
    inner.module_ = *child;
  } else if (reuse_) {
    fail(ErrorKind::InvalidArgument,
         "there is no scope {} to share: create it first, in a scope without reuse(){}", inner.name_,
         did_you_mean(name, children.keys()));
  } else {
    // LibTorch refuses names that are empty or contain a '.'.
    inner.module_ = module_->register_module(name, std::make_shared<torch::nn::Module>(name));
  }
  return inner;
}

Scope Scope::reuse() const {
  Scope same = *this;
  same.reuse_ = true;
  return same;
}

torch::Tensor Scope::get(const std::string& name, torch::IntArrayRef shape, const Init& init,
                         const torch::TensorOptions& options) const {
  const auto own = module_->named_parameters(/*recurse=*/false);
  const torch::Tensor* there = own.find(name);
  if (!reuse_) {
    if (there != nullptr)
      fail(ErrorKind::InvalidArgument,
           "the parameter {} exists already: give the second one another name, or share the first one with "
           "reuse()",
           full(name));
    return create(name, shape, init, options);
  }
  if (there == nullptr)
    fail(ErrorKind::InvalidArgument,
         "there is no parameter {} to share: create it first, in a scope without reuse(){}", full(name),
         did_you_mean(name, own.keys()));
  if (there->sizes() != shape || there->scalar_type() != type_in(options))
    fail(ErrorKind::InvalidArgument,
         "the parameter {} cannot be shared as {}[{}]: it is {}; ask for its own type and shape, or create "
         "another "
         "parameter",
         full(name), type_name(type_in(options)), fmt::join(shape, ","), describe(*there));
  return *there;
}

torch::Tensor Scope::create(const std::string& name, torch::IntArrayRef shape, const Init& init,
                            const torch::TensorOptions& options) const {
  const torch::ScalarType type = type_in(options);
  const torch::Tensor parameter =
      torch::zeros(shape, torch::TensorOptions().dtype(type).device(options.device()));
  if (init) {
    const torch::NoGradGuard no_grad;
    init(parameter);
  }
  return module_->register_parameter(name, parameter,
                                     options.requires_grad_opt().value_or(c10::isFloatingType(type)));
}

}  // namespace tutti::params

#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "tutti/kernels/coverage.h"

namespace tutti::kernels {

// Registers kernels, and remembers for which operators, so that the program knows which ones are ours.
class Registrar {
 public:
  // `autograd` is the library of kernels that are called before autograd records an operator.
  Registrar(torch::Library& library, torch::Library& autograd) : library_(library), autograd_(autograd) {}

  // `name` has no namespace, such as "addmm.out". Does nothing if this version of LibTorch has no such
  // operator.
  template <class Kernel>
  void impl(const char* name, Kernel* kernel) {
    const std::string full = std::string("aten::") + name;
    const size_t dot = std::min(full.find('.'), full.size());
    const bool is_there = c10::Dispatcher::singleton()
                              .findSchema({full.substr(0, dot), full.substr(std::min(dot + 1, full.size()))})
                              .has_value();
    if (!is_there) return;
    library_.impl(name, kernel);
    names_.push_back(full);
  }

  // Registers a kernel that makes its own node in autograd's graph, for an operator which LibTorch composes
  // of others.
  template <class Kernel>
  void impl_with_gradients(const char* name, Kernel* kernel) {
    autograd_.impl(name, kernel);
    impl(name, kernel);
  }

  const std::vector<std::string>& names() const { return names_; }

 private:
  torch::Library& library_;
  std::vector<std::string> names_;
  torch::Library& autograd_;
};

// Each function registers the operators of one file. They take tensors, check and allocate as LibTorch does,
// and call the loops. What is not theirs, such as other types and wrong shapes, they pass on to LibTorch's
// kernels.
void register_products(Registrar& library);
void register_convolutions(Registrar& library);
void register_functions(Registrar& library);
void register_random(Registrar& library);
void register_dropout(Registrar& library);
void register_reductions(Registrar& library);
void register_softmax(Registrar& library);
void register_likelihoods(Registrar& library);
void register_layer_norm(Registrar& library);
void register_batch_norm(Registrar& library);
void register_group_norm(Registrar& library);
void register_scatters(Registrar& library);
void register_largest(Registrar& library);
void register_attention(Registrar& library);
void register_recurrent(Registrar& library);
void register_interpolations(Registrar& library);
void register_almost_exact(Registrar& library);
void register_composed(Registrar& library);

// Returns true if the tensors are ordinary ones of one type, float or double. If they are not, and LibTorch's
// kernel may round differently on another processor, the operator is remembered as not covered.
template <class... Tensors>
bool are_ours(std::string_view name, const at::Tensor& first, const Tensors&... others) {
  const at::ScalarType type = first.scalar_type();
  const bool same = ((others.scalar_type() == type) && ...);
  const bool plain = first.layout() == at::kStrided && ((others.layout() == at::kStrided) && ...);
  if (same && plain && (type == at::kFloat || type == at::kDouble)) return true;
  if (same && !at::isIntegralType(type, /*includeBool=*/true))
    not_covered(name, plain ? at::toString(type) : "sparse tensors");
  return false;
}

// Returns true for bfloat16 and float16. Products of them are computed as products of float, which represents
// all their values, and the result is rounded to them once.
inline bool is_narrow(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 || tensor.scalar_type() == at::kHalf;
}

// Returns true if the tensors are ordinary ones of one type: float, double, bfloat16 or float16.
template <class... Tensors>
bool are_ours_or_narrow(std::string_view name, const at::Tensor& first, const Tensors&... others) {
  const bool same = ((others.scalar_type() == first.scalar_type()) && ...);
  const bool plain = first.layout() == at::kStrided && ((others.layout() == at::kStrided) && ...);
  return (is_narrow(first) && same && plain) || are_ours(name, first, others...);
}

}  // namespace tutti::kernels

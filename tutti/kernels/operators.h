#pragma once

#include <string_view>

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include "tutti/kernels/coverage.h"

namespace tutti::kernels {

// Each function registers the operators of one file. They take tensors, check and allocate as LibTorch does,
// and call the loops. What is not theirs, such as other types and wrong shapes, they pass on to LibTorch's
// kernels.
void register_products(torch::Library& library);
void register_convolutions(torch::Library& library);
void register_reductions(torch::Library& library);
void register_softmax(torch::Library& library);
void register_normalisations(torch::Library& library);
void register_scatters(torch::Library& library);
void register_attention(torch::Library& library);

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

}  // namespace tutti::kernels

#pragma once

#include <optional>
#include <string_view>
#include <type_traits>

#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>

#include "tutti/kernels/coverage.h"

namespace tutti::kernels {

// Copies a result into a tensor that the caller has given, as LibTorch does.
inline at::Tensor& write_result(const at::Tensor& result, at::Tensor& out) {
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}

// The types of tensors that are reduced. Tensors of bfloat16 and float16 are widened to float, and the
// results are rounded back.
inline bool is_reduced_type(at::ScalarType type) {
  return type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf;
}

inline at::Tensor widened(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  return type == at::kBFloat16 || type == at::kHalf ? tensor.to(at::kFloat) : tensor;
}

// Returns true if operators of this module compute with the tensors, which may be undefined. If they do not,
// and LibTorch's kernel may round differently on another processor, the operator is remembered as not
// covered.
template <class... Tensors>
bool are_reduced(std::string_view name, const at::Tensor& first, const Tensors&... others) {
  const auto fits = [](const at::Tensor& each) {
    return !each.defined() || (each.layout() == at::kStrided && is_reduced_type(each.scalar_type()));
  };
  if (fits(first) && (fits(others) && ...)) return true;
  if (!at::isIntegralType(first.scalar_type(), /*includeBool=*/true))
    not_covered(name, first.layout() == at::kStrided ? at::toString(first.scalar_type()) : "sparse tensors");
  return false;
}

}  // namespace tutti::kernels

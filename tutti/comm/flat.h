#pragma once

#include <vector>

#include <torch/types.h>

#include "tutti/comm/sliced_sum.h"
#include "tutti/transport/array.h"

// Tensors as the memory that transports move.
namespace tutti::comm {

inline Bytes bytes_of(const torch::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

// Returns true if the memory of the tensor has its values as they are, one after the other. LibTorch negates
// and conjugates some tensors only when they are read.
inline bool is_plain(const torch::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_neg() && !tensor.is_conj();
}

// Returns the tensor as plain memory on device `place`: itself if it already is, else a copy.
inline torch::Tensor plain(const torch::Tensor& tensor, torch::Device place) {
  if (tensor.device() == place && is_plain(tensor)) return tensor;
  return tensor.to(place).resolve_conj().resolve_neg().contiguous();
}
inline torch::Tensor flat(const torch::Tensor& tensor, torch::Device place) {
  return plain(tensor, place).view(-1);
}

// Like flat(), but does not copy the values: a buffer to receive into.
inline torch::Tensor flat_target(const torch::Tensor& tensor, torch::Device place) {
  if (tensor.device() == place && is_plain(tensor)) return tensor.view(-1);
  return torch::empty({tensor.numel()}, tensor.options().device(place));
}

// If `target` is not the memory of `tensor`, copies the values back into `tensor`.
inline void put_back(const torch::Tensor& tensor, const torch::Tensor& target) {
  if (target.data_ptr() != tensor.data_ptr()) tensor.copy_(target.view(tensor.sizes()));
}

// Returns the memory of a plain tensor; none of an undefined one. Elements of types that are only moved and
// never combined are bytes.
inline Array array_of(const torch::Tensor& tensor) {
  if (!tensor.defined()) return {};
  const ElementType type = element_type(tensor.scalar_type());
  const bool known = size_of(type) == static_cast<size_t>(tensor.element_size());
  return {static_cast<std::byte*>(tensor.data_ptr()), known ? type : ElementType::UInt8,
          known ? tensor.numel() : static_cast<int64_t>(tensor.nbytes())};
}
inline Arrays arrays_of(const std::vector<torch::Tensor>& tensors) {
  Arrays arrays;
  for (const torch::Tensor& tensor : tensors) arrays.push_back(array_of(tensor));
  return arrays;
}

// Returns an array as a tensor on a device, without copying it.
inline torch::Tensor tensor_of(const Array& array, torch::Device device) {
  const auto options = torch::TensorOptions().dtype(scalar_type(array.type)).device(device);
  if (array.data == nullptr) return torch::empty({0}, options);
  return torch::from_blob(array.data, {array.count}, options);
}

}  // namespace tutti::comm

#pragma once

#include <vector>

#include <torch/types.h>

#include "tutti/comm/reduce.h"
#include "tutti/comm/transport.h"

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

// Splits a flat tensor into equal parts.
inline std::vector<torch::Tensor> equal_views(const torch::Tensor& tensor, int parts) {
  std::vector<torch::Tensor> views;
  const int64_t each = tensor.numel() / parts;
  for (int r = 0; r < parts; ++r) views.push_back(tensor.narrow(0, r * each, each));
  return views;
}

inline std::vector<torch::Tensor> views_of(const torch::Tensor& tensor,
                                           const std::vector<ElementRange>& slices) {
  std::vector<torch::Tensor> views;
  for (const ElementRange& slice : slices) views.push_back(tensor.narrow(0, slice.begin, slice.size()));
  return views;
}

}  // namespace tutti::comm

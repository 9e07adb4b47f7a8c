#include "tutti/data/batch.h"

#include <fmt/ranges.h>

#include "tutti/base/error.h"

namespace tutti {
namespace {

std::vector<std::string> names_of(const Batch::Tensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

const torch::Tensor* find(const Batch::Tensors& tensors, std::string_view name) {
  for (const auto& [candidate, tensor] : tensors) {
    if (candidate == name) return &tensor;
  }
  return nullptr;
}

void check_tensor(const std::string& name, const torch::Tensor& tensor) {
  if (!tensor.defined()) {
    fail(ErrorKind::InvalidArgument, "batch: '{}' is an undefined tensor", name);
  }
  if (tensor.dim() == 0) {
    fail(ErrorKind::InvalidArgument,
         "batch: '{}' has no dimensions; the size of the first one must be the number of examples", name);
  }
}

}  // namespace

Batch::Batch(Tensors tensors) : tensors_(std::move(tensors)) {
  for (const auto& [name, tensor] : tensors_) {
    check_tensor(name, tensor);
    if (find(tensors_, name) != &tensor) {
      fail(ErrorKind::InvalidArgument, "batch: the name '{}' occurs twice", name);
    }
    if (tensor.size(0) != tensors_.front().second.size(0)) {
      fail(ErrorKind::InvalidArgument, "batch: '{}' has {} rows, but '{}' has {}", tensors_.front().first,
           tensors_.front().second.size(0), name, tensor.size(0));
    }
  }
}

const torch::Tensor& Batch::operator[](std::string_view name) const {
  if (const torch::Tensor* tensor = find(tensors_, name)) return *tensor;
  fail(ErrorKind::InvalidArgument, "batch: there is no tensor '{}'; the batch has: {}", name,
       tensors_.empty() ? "nothing" : fmt::format("{}", fmt::join(names_of(tensors_), ", ")));
}

bool Batch::has(std::string_view name) const { return find(tensors_, name) != nullptr; }

const torch::Tensor& Batch::front() const {
  if (tensors_.empty()) fail(ErrorKind::InvalidArgument, "batch: front() needs a batch with tensors");
  return tensors_.front().second;
}

int64_t Batch::size() const { return tensors_.empty() ? 0 : tensors_.front().second.size(0); }

Batch Batch::to(torch::Device device) const {
  // For a copy to the CPU, nothing would tell when an asynchronous copy has finished.
  const bool asynchronous = !device.is_cpu();
  Batch moved = *this;
  for (auto& [name, tensor] : moved.tensors_) tensor = tensor.to(device, asynchronous);
  return moved;
}

Batch Batch::pinned() const {
  Batch pinned = *this;
  for (auto& [name, tensor] : pinned.tensors_) {
    if (tensor.device().is_cpu() && !tensor.is_sparse()) tensor = tensor.pin_memory();
  }
  return pinned;
}

}  // namespace tutti

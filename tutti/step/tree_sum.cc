#include "tutti/step/tree_sum.h"

#include <utility>

#include <torch/utils.h>

namespace tutti {

TensorMemory::TensorMemory(Values own, std::vector<Values> rooms)
    : own_(std::move(own)), rooms_(std::move(rooms)) {}

const TensorMemory::Values& TensorMemory::room(size_t index) {
  while (rooms_.size() <= index) {
    rooms_.emplace_back();
    for (const torch::Tensor& vector : own_) rooms_.back().push_back(torch::empty_like(vector));
  }
  return rooms_[index];
}

void TensorMemory::copy(const Values& to, const Values& from) {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < to.size(); ++i) {
    if (!to[i].is_same(from[i])) to[i].copy_(from[i]);
  }
}

void TensorMemory::add(const Values& to, const Values& more) {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < to.size(); ++i) to[i].add_(more[i]);
}

TreeSum::TreeSum(Vectors vectors, LaneRange range, int64_t lanes, std::vector<Vectors> waiting_room)
    : LaneTree(TensorMemory(std::move(vectors), std::move(waiting_room)), range, lanes) {}

}  // namespace tutti

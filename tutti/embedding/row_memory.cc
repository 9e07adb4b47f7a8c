#include "tutti/embedding/row_memory.h"

#include <memory>

namespace tutti::embedding {

RowMemory::RowMemory(comm::SharedVectors& shared, int rank) : shared_(shared), rank_(rank) {}

std::vector<torch::Tensor> RowMemory::allocate(int64_t elements, torch::ScalarType type) {
  return shared_.everyones(shared_.allocate(elements, type));
}

RowPlace RowMemory::own() {
  return {.allocate =
              [this](int64_t elements, torch::ScalarType type) {
                allocated_.push_back(allocate(elements, type));
                return allocated_.back()[static_cast<size_t>(rank_)];
              },
          .has_all = true};
}

RowPlace RowMemory::of(int owner) const {
  return {.allocate = [this, owner, next = std::make_shared<size_t>(0)](
                          int64_t, torch::ScalarType) { return allocated_.at((*next)++).at(static_cast<size_t>(owner)); },
          .has_rows = true,
          .has_all = true};
}

void RowMemory::make_logs(size_t largest_row_bytes) {
  constexpr int64_t kSmallest = 1024;
  const std::vector<torch::Tensor> states =
      allocate(StepLog::words_of_state(largest_row_bytes), torch::kLong);
  const std::vector<torch::Tensor> gradients = allocate(kSmallest, torch::kLong);
  for (size_t owner = 0; owner < states.size(); ++owner) logs_.emplace_back(states[owner], gradients[owner]);
  log().begin();
}

// The gradients of a step differ in size from the gradients of others, so there is more room than asked for.
void RowMemory::reserve(int64_t words) {
  if (words <= log().room()) return;
  const std::vector<torch::Tensor> gradients = allocate(words + words / 4, torch::kLong);
  for (size_t owner = 0; owner < logs_.size(); ++owner) logs_[owner].move_gradients(gradients[owner]);
}

}  // namespace tutti::embedding

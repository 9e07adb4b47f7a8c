#include "tutti/embedding/row_memory.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <torch/utils.h>

namespace tutti::embedding {

namespace {

int64_t aligned_bytes(int64_t elements, torch::ScalarType type) {
  constexpr int64_t kLineBytes = 64;  // of a cache
  const auto bytes = elements * static_cast<int64_t>(c10::elementSize(type));
  return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
}

}  // namespace

torch::Tensor enlarged(const RowPlace& place, const torch::Tensor& rows, int64_t count) {
  std::vector<int64_t> shape = rows.sizes().vec();
  const int64_t before = std::exchange(shape[0], count);
  const int64_t numbers = shape.size() == 1 ? count : count * shape[1];
  const torch::Tensor larger =
      place.replace ? place.replace(rows, numbers).view(shape) : torch::empty(shape, rows.options());
  larger.narrow(0, 0, before).copy_(rows);
  return larger;
}

RowMemory::RowMemory(comm::SharedVectors& shared, int rank,
                     const std::function<void(const RowPlace&)>& make_rows)
    : shared_(shared), rank_(rank) {
  int64_t bytes = 0;
  make_rows({.allocate =
                 [&](int64_t elements, torch::ScalarType type) {
                   bytes += aligned_bytes(elements, type);
                   return torch::empty({elements}, type);  // nothing is written to it
                 },
             .has_all = true,
             .has_rows = true});
  pool_ = allocate(std::max<int64_t>(bytes, 1), torch::kByte);
  make_rows(own());
}

// Takes a part of the pool.
std::vector<torch::Tensor> RowMemory::take(int64_t elements, torch::ScalarType type) {
  const auto size = elements * static_cast<int64_t>(c10::elementSize(type));
  std::vector<torch::Tensor> parts;
  for (const torch::Tensor& memory : pool_) parts.push_back(memory.narrow(0, used_, size).view(type));
  used_ += aligned_bytes(elements, type);
  return parts;
}

std::vector<torch::Tensor> RowMemory::allocate(int64_t elements, torch::ScalarType type) {
  return shared_.everyones(shared_.allocate(elements, type));
}

RowPlace RowMemory::own() {
  return {.allocate =
              [this](int64_t elements, torch::ScalarType type) {
                allocated_.push_back(take(elements, type));
                return allocated_.back()[static_cast<size_t>(rank_)];
              },
          .replace =
              [this](const torch::Tensor& smaller, int64_t elements) {
                const auto own = static_cast<size_t>(rank_);
                const auto found = std::find_if(allocated_.begin(), allocated_.end(), [&](const auto& all) {
                  return all[own].data_ptr() == smaller.data_ptr();
                });
                const auto number = static_cast<size_t>(found - allocated_.begin());
                return (replacements_[number] = allocate(elements, smaller.scalar_type()))[own];
              },
          .has_all = true};
}

void RowMemory::end_replacements() {
  if (replacements_.empty()) return;
  shared_.sync({.what = "the rows of tables"});
  for (auto& [number, memory] : replacements_) allocated_[number] = std::move(memory);
  replacements_.clear();
}

RowPlace RowMemory::of(int owner) const {
  return {.allocate =
              [this, owner, next = std::make_shared<size_t>(0)](int64_t, torch::ScalarType) {
                return allocated_.at((*next)++).at(static_cast<size_t>(owner));
              },
          .has_all = true,
          .has_rows = true};
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

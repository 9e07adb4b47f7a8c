#include "tutti/embedding/row_average.h"

#include <algorithm>

#include <torch/utils.h>

namespace tutti::embedding {

// Zeros, since a checkpoint has the memory of all rows.
RowAverage::RowAverage(double decay, int64_t slots, int64_t dim, const MakeRows& make)
    : weights_{decay},
      dim_(dim),
      kept_(make ? make({slots, dim}, torch::kFloat32, 0) : torch::zeros({slots, dim}, torch::kFloat32)),
      kept_after_(make ? make({slots}, torch::kLong, kNone) : torch::full({slots}, kNone, torch::kLong)) {}

void RowAverage::resize(int64_t slots, const RowPlace& place) {
  const int64_t before = kept_.size(0);
  kept_ = enlarged(place, kept_, slots);
  kept_after_ = enlarged(place, kept_after_, slots);
  kept_.narrow(0, before, slots - before).zero_();
  kept_after_.narrow(0, before, slots - before).fill_(kNone);
}

void RowAverage::begin_row(int64_t slot) { after(slot) = kNone; }

void RowAverage::reset() {
  steps_ = 0;
  kept_after_.fill_(kNone);
}

void RowAverage::before_change(int64_t slot, const float* value) {
  if (after(slot) == steps_) return;
  read(slot, value, false, kept_at(slot));
  after(slot) = steps_;
}

void RowAverage::read(int64_t slot, const float* value, bool before, float* to) const {
  const int64_t steps = before ? steps_ - 1 : steps_;
  const int64_t after_steps = after(slot);
  const float* const kept = kept_at(slot);
  if (after_steps < 0) {
    std::copy_n(value, dim_, to);
  } else if (after_steps >= steps) {
    std::copy_n(kept, dim_, to);
  } else {
    const auto weight = static_cast<float>(weights_.first(after_steps, steps));
    for (int64_t i = 0; i < dim_; ++i) to[i] = value[i] + weight * (kept[i] - value[i]);
  }
}

void RowAverage::put(int64_t slot, const float* kept, int64_t kept_after) {
  std::copy_n(kept, dim_, kept_at(slot));
  after(slot) = kept_after;
}

}  // namespace tutti::embedding

#include "tutti/params/summation/shared_inputs.h"

#include <utility>

namespace tutti {

SharedInputs::SharedInputs(comm::SharedVectors& shared, const Buckets& buckets, const ControlWord& word,
                           size_t first, size_t end, int first_rank) {
  const auto sources = word.sources();
  for (const torch::Tensor& tensor : buckets.vectors) {
    Vector vector;
    vector.everyones = shared.everyones(tensor);
    std::vector<Tensors> everyones_extras;
    for (size_t i = 0; i + 1 < word.most_subtrees(); ++i) {
      vector.extras.push_back(shared.allocate(tensor.numel(), tensor.scalar_type()));
      everyones_extras.push_back(shared.everyones(vector.extras.back()));
    }
    for (size_t s = first; s < end; ++s) {
      const auto rank = static_cast<size_t>(sources[s].rank - first_rank);
      const bool last = s + 1 == end || sources[s + 1].rank != sources[s].rank;
      vector.inputs.push_back(last ? vector.everyones[rank] : everyones_extras[sources[s].subtree][rank]);
    }
    vectors_.push_back(std::move(vector));
  }
}

void SharedInputs::show(const Bucket& bucket, const Subtrees& subtrees) const {
  for (size_t i = 0; i + 1 < subtrees.size(); ++i) {
    if (!subtrees[i].values) continue;
    vectors_[bucket.vector]
        .extras[i]
        .narrow(0, bucket.begin, bucket.end - bucket.begin)
        .copy_((*subtrees[i].values)[0]);
  }
}

std::vector<const std::byte*> SharedInputs::inputs(size_t vector, int64_t element) const {
  std::vector<const std::byte*> inputs;
  for (const torch::Tensor& input : vectors_[vector].inputs) inputs.push_back(bytes_at(input, element));
  return inputs;
}

std::byte* bytes_at(const torch::Tensor& vector, int64_t element) {
  return static_cast<std::byte*>(vector.data_ptr()) + element * static_cast<int64_t>(vector.element_size());
}

}  // namespace tutti

#include "tutti/params/buckets.h"

#include <algorithm>

#include <torch/utils.h>

namespace tutti {
namespace {

// Starts a new bucket at the first parameter for which the current bucket has reached the minimum size.
void cut(const Parameters& parameters, size_t block, int64_t bytes, Buckets& buckets) {
  const torch::Tensor& vector = buckets.vectors[block];
  const int64_t enough = (bytes - 1) / static_cast<int64_t>(vector.element_size()) + 1;
  const auto& views = parameters.trained();
  Bucket bucket{.vector = block, .begin = 0, .end = vector.numel(), .gradients = true};
  for (size_t i = 0; i < views.size(); ++i) {
    if (views[i].block != block) continue;
    if (views[i].offset - bucket.begin >= enough) {
      bucket.end = views[i].offset;
      buckets.all.push_back(bucket);
      bucket.begin = views[i].offset;
      bucket.end = vector.numel();
    }
    buckets.of_parameter[i] = buckets.all.size();
  }
  buckets.all.push_back(bucket);
}

}  // namespace

Buckets buckets_of(const Parameters& parameters, int64_t bytes) {
  Buckets buckets;
  buckets.of_parameter.resize(parameters.trained().size());
  for (const Stretch& block : parameters.blocks()) buckets.vectors.push_back(block.grads);
  for (size_t block = 0; block < parameters.blocks().size(); ++block) cut(parameters, block, bytes, buckets);
  for (const torch::Tensor& vector : parameters.buffer_vectors()) {
    buckets.all.push_back(
        {.vector = buckets.vectors.size(), .begin = 0, .end = vector.numel(), .gradients = false});
    buckets.vectors.push_back(vector);
  }
  return buckets;
}

std::vector<Stretch> parts_of(const Parameters& parameters, int rank, int world) {
  if (world == 1) return parameters.blocks();
  std::vector<Stretch> stretches;
  for (const Bucket& bucket : buckets_of(parameters).all) {
    const comm::Slice part = part_of(bucket, rank, world);
    if (!bucket.gradients || part.begin == part.end) continue;
    const Stretch& block = parameters.blocks()[bucket.vector];
    stretches.push_back({block.values.narrow(0, part.begin, part.end - part.begin),
                         block.grads.narrow(0, part.begin, part.end - part.begin), bucket.vector,
                         part.begin});
  }
  return stretches;
}

comm::Slice part_of(const Bucket& bucket, int rank, int world) {
  const int64_t cells = (bucket.end - bucket.begin + kCell - 1) / kCell;
  const auto at = [&](int r) { return std::min(bucket.end, bucket.begin + cells * r / world * kCell); };
  return {at(rank), at(rank + 1)};
}

}  // namespace tutti

#include "tutti/data/sampler.h"

#include <algorithm>

#include "tutti/base/check.h"
#include "tutti/data/permutation.h"

namespace tutti::data {
namespace {

// Seeds and epochs are small and close together; two rounds of mixing put their keys far apart.
uint64_t epoch_key(int64_t seed, int64_t epoch) {
  return mix(mix(static_cast<uint64_t>(seed) + 0x632be59bd9b4e019ULL) ^ static_cast<uint64_t>(epoch));
}

int64_t examples_per_step(const SamplerOptions& options) {
  if (options.lanes < 1 || options.batch < 1) {
    fail(ErrorKind::InvalidArgument, "sampler: {} lanes with a batch of {} were asked for; both start at 1",
         options.lanes, options.batch);
  }
  int64_t product = 0;
  if (__builtin_mul_overflow(options.lanes, options.batch, &product) || product > Permutation::kLargest) {
    fail(ErrorKind::InvalidArgument, "sampler: {} lanes with a batch of {} are too many examples a step",
         options.lanes, options.batch);
  }
  return product;
}

}  // namespace

Sampler::Sampler(int64_t examples, const SamplerOptions& options) : size_(examples), options_(options) {
  if (examples < 0 || examples > Permutation::kLargest) {
    fail(ErrorKind::InvalidArgument, "sampler: {} examples; 0 to 2^62 are possible", examples);
  }
  const int64_t per_step = examples_per_step(options);
  steps_per_epoch_ = examples / per_step + (examples % per_step != 0 && !options.drop_remainder ? 1 : 0);
}

int64_t Sampler::epoch_of(int64_t step) const {
  TUTTI_CHECK(steps_per_epoch_ > 0 && step >= 0, "step {} of {} examples", step, size_);
  return step / steps_per_epoch_;
}

void Sampler::examples(int64_t step, int64_t lane, std::vector<int64_t>& out) const {
  TUTTI_CHECK(lane >= 0 && lane < options_.lanes, "lane {} of {}", lane, options_.lanes);
  const int64_t epoch = epoch_of(step);
  const int64_t in_epoch = step % steps_per_epoch_;
  // No overflow: the step begins inside the epoch, and a step's examples are at most 2^62.
  const int64_t step_begin = in_epoch * options_.lanes * options_.batch;
  const int64_t begin = std::min(step_begin + lane * options_.batch, size_);
  const int64_t end = begin + std::min(options_.batch, size_ - begin);
  out.clear();
  out.reserve(static_cast<size_t>(end - begin));
  if (options_.order == Order::Sequential) {
    for (int64_t position = begin; position < end; ++position) out.push_back(position);
    return;
  }
  const Permutation permutation(size_, epoch_key(options_.seed, epoch));
  for (int64_t position = begin; position < end; ++position) out.push_back(permutation(position));
}

}  // namespace tutti::data

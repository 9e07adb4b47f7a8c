#include "tutti/data/sampler.h"

#include <algorithm>

#include "tutti/base/check.h"
#include "tutti/data/permutation.h"

namespace tutti::data {
namespace {

// Seeds and epochs are small and close together; mixing twice makes their keys very different.
uint64_t epoch_key(int64_t seed, int64_t epoch) {
  return mix(mix(static_cast<uint64_t>(seed) + 0x632be59bd9b4e019ULL) ^ static_cast<uint64_t>(epoch));
}

int64_t examples_per_step(const SamplerOptions& options) {
  if (options.lanes < 1 || options.batch < 1) {
    fail(ErrorKind::InvalidArgument, "sampler: lanes is {} and batch is {}; both must be 1 or more",
         options.lanes, options.batch);
  }
  int64_t product = 0;
  if (__builtin_mul_overflow(options.lanes, options.batch, &product) || product > Permutation::kLargest) {
    fail(ErrorKind::InvalidArgument, "sampler: {} lanes with a batch of {} give too many examples per step",
         options.lanes, options.batch);
  }
  return product;
}

}  // namespace

Sampler::Sampler(int64_t examples, const SamplerOptions& options) : size_(examples), options_(options) {
  if (examples < 0 || examples > Permutation::kLargest) {
    fail(ErrorKind::InvalidArgument, "sampler: {} examples; expected 0 to 2^62", examples);
  }
  const int64_t per_step = examples_per_step(options);
  if (options.ranges.empty()) {
    steps_per_epoch_ = steps_for(examples, per_step);
    return;
  }
  if (static_cast<int64_t>(options.ranges.size()) != options.lanes)
    fail(ErrorKind::InvalidArgument,
         "sampler: {} ranges of examples for {} lanes; expected one for each lane", options.ranges.size(),
         options.lanes);
  std::vector<int64_t> steps;
  for (const ExampleRange& range : options.ranges) {
    if (range.begin < 0 || range.end < range.begin || range.end > examples)
      fail(ErrorKind::InvalidArgument, "sampler: {} to {} is not a range within {} examples", range.begin,
           range.end, examples);
    steps.push_back(steps_for(range.size(), options.batch));
  }
  const auto [shortest, longest] = std::minmax_element(steps.begin(), steps.end());
  steps_per_epoch_ = options.drop_remainder ? *shortest : *longest;
}

int64_t Sampler::steps_for(int64_t examples, int64_t per_step) const {
  return examples / per_step + (examples % per_step != 0 && !options_.drop_remainder ? 1 : 0);
}

int64_t Sampler::epoch_of(int64_t step) const {
  TUTTI_CHECK(steps_per_epoch_ > 0 && step >= 0, "step {} of {} examples", step, size_);
  return step / steps_per_epoch_;
}

// Returns positions in the order of the lane's own examples, or in the order that all lanes share.
ExampleRange Sampler::positions(int64_t in_epoch, int64_t lane) const {
  const bool alone = !options_.ranges.empty();
  const int64_t all = alone ? options_.ranges[static_cast<size_t>(lane)].size() : size_;
  // This does not overflow: the step begins inside the epoch, and a step has at most 2^62 examples.
  const int64_t before =
      alone ? in_epoch * options_.batch : in_epoch * options_.lanes * options_.batch + lane * options_.batch;
  const int64_t begin = std::min(before, all);
  return {begin, begin + std::min(options_.batch, all - begin)};
}

bool Sampler::fills_all_lanes(int64_t step) const {
  for (int64_t lane = 0; lane < options_.lanes; ++lane) {
    if (positions(step % steps_per_epoch_, lane).size() == 0) return false;
  }
  return true;
}

void Sampler::examples(int64_t step, int64_t lane, std::vector<int64_t>& out) const {
  TUTTI_CHECK(lane >= 0 && lane < options_.lanes, "lane {} of {}", lane, options_.lanes);
  const int64_t epoch = epoch_of(step);
  const ExampleRange own =
      options_.ranges.empty() ? ExampleRange{0, size_} : options_.ranges[static_cast<size_t>(lane)];
  const ExampleRange at = positions(step % steps_per_epoch_, lane);
  out.clear();
  out.reserve(static_cast<size_t>(at.size()));
  if (options_.order == Order::Sequential) {
    for (int64_t position = at.begin; position < at.end; ++position) out.push_back(own.begin + position);
    return;
  }
  uint64_t key = epoch_key(options_.seed, epoch);
  if (!options_.ranges.empty()) key = mix(key + static_cast<uint64_t>(lane));
  const Permutation permutation(own.size(), key);
  for (int64_t position = at.begin; position < at.end; ++position)
    out.push_back(own.begin + permutation(position));
}

}  // namespace tutti::data

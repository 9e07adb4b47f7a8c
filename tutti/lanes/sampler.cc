#include "tutti/lanes/sampler.h"

#include <algorithm>
#include <bit>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/check.h"
#include "tutti/base/hashes.h"

namespace tutti::data {

Permutation::Permutation(int64_t size, uint64_t key) : size_(static_cast<uint64_t>(size)) {
  if (size < 0 || size > kLargest) {
    fail(ErrorKind::InvalidArgument, "a permutation of {} numbers was requested; expected 0 to 2^62", size);
  }
  const int bits = size < 2 ? 0 : std::bit_width(size_ - 1);
  rounds_ = bits <= kNarrowBits ? kNarrowRounds : kWideRounds;
  right_bits_ = (bits + 1) / 2;
  left_mask_ = (uint64_t{1} << (bits - right_bits_)) - 1;
  right_mask_ = (uint64_t{1} << right_bits_) - 1;
  for (size_t round = 0; round < rounds_; ++round) {
    round_keys_[round] = mix_bits(key += kGoldenBits);
  }
}

uint64_t Permutation::encrypt(uint64_t word) const {
  uint64_t left = word >> right_bits_;
  uint64_t right = word & right_mask_;
  for (size_t round = 0; round < rounds_; round += 2) {
    right ^= mix_bits(left + round_keys_[round]) & right_mask_;
    left ^= mix_bits(right + round_keys_[round + 1]) & left_mask_;
  }
  return (left << right_bits_) | right;
}

// Undoes the rounds from the last to the first.
uint64_t Permutation::decrypt(uint64_t word) const {
  uint64_t left = word >> right_bits_;
  uint64_t right = word & right_mask_;
  for (size_t round = rounds_; round > 0; round -= 2) {
    left ^= mix_bits(right + round_keys_[round - 1]) & left_mask_;
    right ^= mix_bits(left + round_keys_[round - 2]) & right_mask_;
  }
  return (left << right_bits_) | right;
}

int64_t Permutation::position_of(int64_t image) const {
  auto word = static_cast<uint64_t>(image);
  TUTTI_CHECK(word < size_, "image {} size {}", image, size_);
  do {
    word = decrypt(word);
  } while (word >= size_);
  return static_cast<int64_t>(word);
}

int64_t Permutation::operator()(int64_t position) const {
  auto word = static_cast<uint64_t>(position);
  TUTTI_CHECK(word < size_, "position {} size {}", position, size_);
  do {
    word = encrypt(word);
  } while (word >= size_);
  return static_cast<int64_t>(word);
}

namespace {

// Seeds and epochs are small and close together; mixing twice makes their keys very different.
uint64_t epoch_key(int64_t seed, int64_t epoch) {
  return mix_bits(mix_bits(static_cast<uint64_t>(seed) + 0x632be59bd9b4e019ULL) ^
                  static_cast<uint64_t>(epoch));
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

void Sampler::require_steps() const {
  if (steps_per_epoch_ > 0) return;
  if (options_.ranges.empty())
    fail(ErrorKind::InvalidArgument,
         "the {} examples do not fill one step of {} lanes with {} examples each: use a smaller --batch, or "
         "--no-drop-remainder",
         size_, options_.lanes, options_.batch);
  const auto shortest = std::min_element(options_.ranges.begin(), options_.ranges.end(),
                                         [](const auto& a, const auto& b) { return a.size() < b.size(); });
  fail(ErrorKind::InvalidArgument,
       "lane {} has {} examples of its own, which do not fill a step of {}: use a smaller --batch, "
       "--no-drop-remainder, or another partition",
       shortest - options_.ranges.begin(), shortest->size(), options_.batch);
}

int64_t Sampler::epoch_of(int64_t step) const {
  require_steps();
  TUTTI_CHECK(step >= 0, "step {} of {} examples", step, size_);
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
  if (!options_.ranges.empty()) key = mix_bits(key + static_cast<uint64_t>(lane));
  const Permutation permutation(own.size(), key);
  for (int64_t position = at.begin; position < at.end; ++position)
    out.push_back(own.begin + permutation(position));
}

namespace {

// Returns 0, and the sums of the first 1, 2, ... numbers.
std::vector<int64_t> sums_of(const std::vector<int64_t>& numbers) {
  std::vector<int64_t> sums = {0};
  for (const int64_t number : numbers) sums.push_back(sums.back() + number);
  return sums;
}

// The parts are the leaves of a binary tree. A node with n positions, of which l belong to its left half,
// sends position p to the left if floor((p l + phase) / n) is less than floor(((p + 1) l + phase) / n): so
// the first p positions have that many of the left half before them, and its share differs from p l / n by
// less than one.
class Interleaved {
 public:
  Interleaved(std::vector<int64_t> sizes, const std::vector<int64_t>& counts, int64_t seed)
      : sizes_(std::move(sizes)), sums_(sums_of(counts)), seed_(seed) {}

  int64_t size() const { return sums_.back(); }

  PartExample operator()(int64_t example) const {
    int64_t position = example;
    size_t begin = 0;
    size_t end = sizes_.size();
    while (end - begin > 1) {
      const size_t middle = begin + (end - begin) / 2;
      const int64_t before = of_left(begin, middle, end, position);
      if (of_left(begin, middle, end, position + 1) > before) {
        position = before;
        end = middle;
      } else {
        position -= before;
        begin = middle;
      }
    }
    return {begin, position % sizes_[begin]};
  }

 private:
  // Returns the number of positions of the left half among the first `positions` of a node.
  int64_t of_left(size_t begin, size_t middle, size_t end, int64_t positions) const {
    __extension__ using Wide = unsigned __int128;
    const auto all = static_cast<uint64_t>(sums_[end] - sums_[begin]);
    const auto left = static_cast<uint64_t>(sums_[middle] - sums_[begin]);
    const uint64_t phase =
        mix_bits(mix_bits(static_cast<uint64_t>(seed_) + 0xd6e8feb86659fd93ULL) ^ (begin << 32 | end)) % all;
    return static_cast<int64_t>((Wide{static_cast<uint64_t>(positions)} * left + phase) / all);
  }

  std::vector<int64_t> sizes_;
  std::vector<int64_t> sums_;  // of the counts
  int64_t seed_;
};

}  // namespace

Arrangement skipping(int64_t size, int64_t count) {
  const int64_t skipped = std::min(size, count);
  return {size - skipped,
          [skipped](int64_t example) {
            return PartExample{0, skipped + example};
          },
          fmt::format("skip {}", skipped)};
}

Arrangement drawn(int64_t size, int64_t begin, int64_t end, int64_t seed) {
  const Permutation order(size, mix_bits(static_cast<uint64_t>(seed) + 0x9fb21c651e98df25ULL));
  return {end - begin,
          [order, begin](int64_t example) {
            return PartExample{0, order(begin + example)};
          },
          fmt::format("{} to {} in the order of seed {}", begin, end, seed)};
}

Arrangement one_after_another(const std::vector<int64_t>& sizes) {
  const std::vector<int64_t> begins = sums_of(sizes);  // of each part, and the end of the last one
  const auto at = [begins](int64_t example) {
    const auto next = std::upper_bound(begins.begin(), begins.end(), example);
    return PartExample{static_cast<size_t>(next - begins.begin()) - 1, example - *(next - 1)};
  };
  return {begins.back(), at, "concat"};
}

Arrangement interleaved(std::vector<int64_t> sizes, const std::vector<int64_t>& counts, int64_t seed) {
  const Interleaved at(std::move(sizes), counts, seed);
  return {at.size(), at, fmt::format("mix {} by seed {}", fmt::join(counts, " : "), seed)};
}

}  // namespace tutti::data

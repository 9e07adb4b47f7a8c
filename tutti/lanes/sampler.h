#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tutti::data {

// A bijection on [0, size) that is determined by a key and computed on demand, so that shuffling needs no
// array. Const after construction; building one costs about as much as evaluating it once.
//
// A Feistel network permutes the numbers of b bits, where 2^b is the first power of two that is not less than
// `size`; a result outside [0, size) is encrypted again until it is inside (cycle walking: Black and Rogaway,
// "Ciphers with arbitrary finite domains", 2002). At most half of the numbers lie outside, so that two rounds
// of encryption suffice on average.
class Permutation {
 public:
  static constexpr int64_t kLargest = int64_t{1} << 62;

  // Requires 0 <= size <= kLargest, else throws InvalidArgument.
  Permutation(int64_t size, uint64_t key);

  int64_t size() const { return static_cast<int64_t>(size_); }

  // Returns the image of `position`, which must be in [0, size); anything else is a Bug.
  int64_t operator()(int64_t position) const;
  // Returns the position with this image, which must be in [0, size) too.
  int64_t position_of(int64_t image) const;

 private:
  // A round mixes little if a half has few bits, so narrow networks use more rounds; permutation_test.cc
  // shows that 18 rounds of 3 bits are not enough.
  static constexpr int kNarrowBits = 10;
  static constexpr int kNarrowRounds = 24;
  static constexpr int kWideRounds = 10;

  uint64_t encrypt(uint64_t word) const;
  uint64_t decrypt(uint64_t word) const;

  uint64_t size_;
  int right_bits_;
  uint64_t left_mask_;
  uint64_t right_mask_;
  size_t rounds_;
  std::array<uint64_t, kNarrowRounds> round_keys_;
};

// The order in which an epoch has the examples.
enum class Order { Sequential, Shuffled };

// A range of consecutive examples: [begin, end).
struct ExampleRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool operator==(const ExampleRange&) const = default;
};

// Options of a Sampler.
struct SamplerOptions {
  Order order = Order::Shuffled;  // of the examples in an epoch
  int64_t seed = 1;               // of the order
  int64_t lanes = 1;              // the number of lanes of all workers together
  int64_t batch = 1;              // examples per lane and step
  // Leaves out the last examples of an epoch if they do not fill a step of all lanes. If examples are
  // shuffled, these are different ones in each epoch.
  bool drop_remainder = false;
  // The examples of each lane, if the lanes do not share all examples. Empty: they do.
  std::vector<ExampleRange> ranges = {};
};

// Determines the examples that a lane sees at a step, as a pure function of the options, the step and the
// lane. It stores no list of examples, so a billion of them cost nothing, and training can resume at any
// step. A value; const after construction.
//
// An epoch is the sequence of all examples, each once, in an order that depends only on seed and epoch. Its
// positions are assigned step by step, within a step lane by lane, and within a lane example by example. So
// the examples of a step do not depend on the number of lanes that share them, as long as lanes x batch is
// the same.
//
// With ranges, each lane sees only the examples of its range, in a separate random order. An epoch is as long
// as the lane with the most examples needs; if the remainder is dropped, as long as the lane with the fewest
// examples fills.
class Sampler {
 public:
  // Requires 0 to 2^62 examples, at least one lane and a batch of at least one, and one range for each lane
  // or none; else InvalidArgument.
  Sampler(int64_t examples, const SamplerOptions& options = {});

  // The number of steps per epoch; the last one may be shorter. 0 if there are too few examples for one step.
  int64_t steps_per_epoch() const { return steps_per_epoch_; }
  // Throws InvalidArgument if there are too few examples for one step.
  void require_steps() const;

  // The epoch of a global step (counted from 0). Throws as require_steps().
  int64_t epoch_of(int64_t step) const;

  // Fills `out` with the examples of `lane` at global step `step`: `batch` examples, or in the last step of
  // an epoch possibly fewer or none.
  void examples(int64_t step, int64_t lane, std::vector<int64_t>& out) const;
  // Returns true if every lane has examples at that step.
  bool fills_all_lanes(int64_t step) const;

  int64_t size() const { return size_; }
  const SamplerOptions& options() const { return options_; }

 private:
  int64_t steps_for(int64_t examples, int64_t per_step) const;
  ExampleRange positions(int64_t in_epoch, int64_t lane) const;

  int64_t size_;
  SamplerOptions options_;
  int64_t steps_per_epoch_;
};

// An example of one of the feeds that a feed is made of.
struct PartExample {
  size_t part = 0;
  int64_t example = 0;

  bool operator==(const PartExample&) const = default;
};

// Describes which examples of its parts a combined feed has, and in which order, without a list of examples.
struct Arrangement {
  int64_t size = 0;  // the number of examples of the combined feed
  // A pure function; requires 0 <= example < size.
  std::function<PartExample(int64_t example)> at;
  // All numbers that determine the arrangement, readable: "skip 10". Different arrangements of the same parts
  // have different texts.
  std::string text;
};

// All examples of a part of `size` examples but the first `count`.
Arrangement skipping(int64_t size, int64_t count);

// The examples at the positions `begin` to `end` of a random order of a part of `size` examples, which `seed`
// determines.
Arrangement drawn(int64_t size, int64_t begin, int64_t end, int64_t seed);

// All examples of the first part, then all of the second, and so on.
Arrangement one_after_another(const std::vector<int64_t>& sizes);

// `counts[i]` examples of part i, spread evenly: among the first n positions every part has its share of n,
// rounded, give or take one for each time that the number of parts can be halved. `seed` determines the exact
// positions. The examples of each part come in their order, from the first one on, and again from the first
// one after its last. Requires that no count is negative, and that their sum is at most 2^53.
Arrangement interleaved(std::vector<int64_t> sizes, const std::vector<int64_t>& counts, int64_t seed);

}  // namespace tutti::data

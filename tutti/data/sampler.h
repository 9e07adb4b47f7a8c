#pragma once

#include <cstdint>
#include <vector>

namespace tutti::data {

enum class Order { Sequential, Shuffled };

// A range of consecutive examples: [begin, end).
struct ExampleRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool operator==(const ExampleRange&) const = default;
};

struct SamplerOptions {
  Order order = Order::Shuffled;
  int64_t seed = 1;
  int64_t lanes = 1;
  int64_t batch = 1;  // examples per lane and step
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
// With ranges each lane goes through its own examples, in an order of its own. An epoch is as long as the
// lane with the most examples needs; if the remainder is dropped, as long as the lane with the fewest
// examples fills.
class Sampler {
 public:
  // Requires 0 to 2^62 examples, at least one lane and a batch of at least one, and one range for each lane
  // or none; else InvalidArgument.
  Sampler(int64_t examples, const SamplerOptions& options = {});

  // The number of steps per epoch; the last one may be shorter. 0 if there are too few examples for one step.
  int64_t steps_per_epoch() const { return steps_per_epoch_; }

  // The epoch of a global step (counted from 0). Requires examples.
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

}  // namespace tutti::data

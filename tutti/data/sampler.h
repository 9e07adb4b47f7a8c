#pragma once

#include <cstdint>
#include <vector>

namespace tutti::data {

enum class Order { Sequential, Shuffled };

// Neighbours among the examples: [begin, end).
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
  // Leaves out what does not fill a step of all lanes: other examples in each epoch where they are shuffled.
  bool drop_remainder = false;
  // What each lane sees where it does not share all examples with the others. Empty: it does.
  std::vector<ExampleRange> ranges = {};
};

// Which examples a lane sees at a step: a pure function of the options, the step and the lane. It holds no
// list of examples, so a billion of them cost nothing and every step can be resumed. A value; const after
// construction.
//
// An epoch is the sequence of all examples, each once, in an order that depends on seed and epoch alone. It
// is dealt out in positions: step by step, within a step lane by lane, within a lane example by example. So
// the examples of a step are the same however many lanes share them, as long as lanes x batch is.
//
// With ranges each lane deals out its own to itself, in an order of its own. An epoch is as long as the
// longest needs; where the remainder is dropped, as the shortest fills.
class Sampler {
 public:
  // Examples from 0 to 2^62, at least one lane and a batch of one, a range for each lane or none; else
  // InvalidArgument.
  Sampler(int64_t examples, const SamplerOptions& options = {});

  // Steps that an epoch takes; its last may be short. 0 where there are not enough examples for one.
  int64_t steps_per_epoch() const { return steps_per_epoch_; }

  // The epoch that the global step (from 0) belongs to. There must be examples.
  int64_t epoch_of(int64_t step) const;

  // Fills `out` with what `lane` sees at global step `step`: `batch` examples; in the last step of an epoch
  // perhaps fewer, perhaps none.
  void examples(int64_t step, int64_t lane, std::vector<int64_t>& out) const;
  // Whether every lane sees some at that step.
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

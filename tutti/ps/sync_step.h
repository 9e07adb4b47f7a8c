#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <torch/types.h>

#include "tutti/params/control_word.h"
#include "tutti/params/lane_vectors.h"
#include "tutti/params/optimizer.h"
#include "tutti/rpc/message.h"

namespace tutti::ps {

struct SyncOptions {
  int workers = 1;
  int64_t lanes = 1;
};

// One synchronous step of whoever holds parameters, or a part of them: takes what every worker's lanes gave
// of the part, adds it along the tree over the lanes, divides it by the examples of all and updates the part.
// So its bits are those of any other way to make the step.
//
// What a worker gives are pieces: its control word; for each of its subtrees that has data the stretches of
// the part and then the buffers, of which there may be none here; and, where it has data, the counters. Not
// thread-safe.
class SyncStep {
 public:
  // The optimiser, that of the stretches, outlives this. `buffers` are what the mean over the lanes is taken
  // of, `counters` what is taken over from a worker that had data.
  SyncStep(std::vector<Stretch> stretches, Optimizer& optimizer, std::vector<torch::Tensor> buffers,
           std::vector<torch::Tensor> counters, const SyncOptions& options);

  // The message stays until made() or withdraw(). What does not fit is an InvalidArgument and changes
  // nothing.
  void offer(int rank, int64_t step, const rpc::Message& message);
  void withdraw(int rank) { offers_[static_cast<size_t>(rank)].reset(); }
  bool has(int rank) const { return offers_[static_cast<size_t>(rank)].has_value(); }
  int64_t offers() const;

  // Makes the mean gradient out of what was offered, which it forgets. Who offered nothing had no data.
  struct Result {
    ReduceOutcome outcome;
    int64_t examples = 0;
    torch::Tensor loss_sum = {};  // of all examples, float64; undefined where there were none
    torch::Tensor words = {};     // of all workers, one after the other
  };
  Result add_up(int64_t step);
  // Updates the part with that gradient, multiplied by the factor. Nothing happens where nobody had data.
  void apply(double factor);

 private:
  struct Offer {
    torch::Tensor word;
    std::vector<std::vector<torch::Tensor>> subtrees;  // [subtree]: gradients, buffers; empty without data
    std::vector<torch::Tensor> counters;
  };

  torch::Tensor word_of(int rank, int64_t step) const;
  void add(const torch::Tensor& numbers);
  void add_one(size_t index, const torch::Tensor& output, double divisor);

  const std::vector<Stretch> stretches_;
  Optimizer& optimizer_;
  const std::vector<torch::Tensor> buffers_;
  const std::vector<torch::Tensor> counters_;
  const bool one_lane_;
  std::vector<torch::Tensor> summed_;  // the gradients, then the buffers
  ControlWord word_;
  std::vector<std::optional<Offer>> offers_;  // [rank]
  bool any_data_ = false;                     // in what was added up
};

}  // namespace tutti::ps

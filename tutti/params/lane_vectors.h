#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

#include "tutti/params/parameters.h"

namespace tutti {

// What the numbers of a lane are, in one float64 vector.
enum Number {
  kLoss,      // the sum over its examples
  kExamples,  // how many
  kLanes,     // 1
  kNumbers
};

// Buffers that are not of a floating type, such as a count of batches: nothing is added to them. After each
// lane they are the same, since every lane starts from what was there before the step.
std::vector<torch::Tensor> counters_of(const Parameters& parameters);
// float64 vectors in the place of those of the floating buffers, where the sum of equal float32 is exact:
// what is the same in all lanes keeps its bits at any number of lanes. The buffers' own vectors with one
// lane, where there is nothing to add.
std::vector<torch::Tensor> exact_sums(const Parameters& parameters, bool one_lane, const Allocate& allocate);

// What one lane after the other gives, in vectors that can be added up: gradients (those of the parameters),
// buffers, and a few numbers. Every lane starts from the buffers as they were before the step. Not
// thread-safe.
class LaneVectors {
 public:
  // The parameters outlive this. With one lane in all nothing is to be added: the buffers are the module's
  // own.
  LaneVectors(Parameters& parameters, int64_t lanes, const Allocate& allocate = {});

  // What the mean loss over so many examples is multiplied by before the backward pass, so that a lane gives
  // the sum. With one lane in all the mean is taken as it is: nothing to scale, to add or to divide.
  double weight(int64_t examples) const { return one_lane_ ? 1 : static_cast<double>(examples); }
  bool one_lane() const { return one_lane_; }

  // The module's buffers are those that lanes start from, and are in buffers() too.
  void begin_step();
  // Gradients are zero, buffers as they were before the step.
  void begin_lane();
  // The lane's mean loss.
  void count(const torch::Tensor& loss, int64_t examples);
  // After the backward pass: what the lane gives is in the vectors.
  void collect();
  // What buffers() have become, to the module.
  void take_over_buffers();

  // Of floating buffers, one vector each: exact_sums().
  const std::vector<torch::Tensor>& buffers() const { return exact_; }
  const std::vector<torch::Tensor>& counters() const { return counters_; }
  const torch::Tensor& numbers() const { return numbers_; }

 private:
  void show_buffers();

  Parameters& parameters_;
  const bool one_lane_;
  const std::vector<torch::Tensor> counters_;
  const std::vector<torch::Tensor> exact_;
  std::vector<torch::Tensor> current_;  // the module's: floating vectors, then counters
  std::vector<torch::Tensor> before_;   // beside them, where there are several lanes
  const torch::Tensor numbers_;
};

}  // namespace tutti

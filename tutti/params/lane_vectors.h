#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

#include "tutti/params/parameters.h"

namespace tutti {

// The numbers of a lane, which are stored in one float64 vector.
enum Number {
  kLoss,      // the sum over its examples
  kExamples,  // the number of its examples
  kLanes,     // 1
  kNumbers
};

// Returns the buffers that are not of a floating type, such as a count of batches. They are not summed: after
// each lane they are the same, since every lane starts from the values before the step.
std::vector<torch::Tensor> counters_of(const Parameters& parameters);
// Returns float64 vectors in which the floating buffers are summed. A sum of equal float32 numbers is exact
// in float64, so buffers that are the same in all lanes keep their bits for any number of lanes. With one
// lane, or for float64 buffers, returns the buffers' own vectors.
std::vector<torch::Tensor> exact_sums(const Parameters& parameters, bool one_lane, const Allocate& allocate);

// The results of one lane after the other, in vectors that can be summed: gradients (the vectors of the
// parameters), buffers, and a few numbers. Every lane starts from the buffers as they were before the step.
// Not thread-safe.
class LaneVectors {
 public:
  // The parameters must outlive this. With one lane in all nothing has to be summed, so the module's own
  // buffers are used.
  LaneVectors(Parameters& parameters, int64_t lanes, const Allocate& allocate = {});

  // Returns the factor for a lane's mean loss before the backward pass, so that the lane gives the sum. With
  // one lane in all, the mean is used as it is, and nothing has to be scaled, added or divided.
  double weight(int64_t examples) const { return one_lane_ ? 1 : static_cast<double>(examples); }
  bool one_lane() const { return one_lane_; }

  // Saves the module's buffers as the values that lanes start from, and copies them to buffers(). Throws
  // InvalidArgument if a parameter has been frozen or unfrozen since the parameters were made.
  void begin_step();
  // Sets the gradients to zero and the buffers to their values before the step.
  void begin_lane();
  // Stores the numbers of a lane; `loss` is its mean loss.
  void count(const torch::Tensor& loss, int64_t examples);
  // Called after the backward pass: collects the results of the lane in the vectors.
  void collect();
  // Copies the current values of buffers() to the module.
  void take_over_buffers();

  // The sums of the floating buffers, one vector each; see exact_sums().
  const std::vector<torch::Tensor>& buffers() const { return exact_; }
  const std::vector<torch::Tensor>& counters() const { return counters_; }
  const torch::Tensor& numbers() const { return numbers_; }

 private:
  void show_buffers();

  Parameters& parameters_;
  const bool one_lane_;
  const std::vector<torch::Tensor> counters_;
  const std::vector<torch::Tensor> exact_;
  std::vector<torch::Tensor> current_;  // the module's buffers: floating vectors, then counters
  std::vector<torch::Tensor> before_;   // parallel to current_; empty with one lane
  const torch::Tensor numbers_;
};

}  // namespace tutti

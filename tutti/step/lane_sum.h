#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

#include "tutti/params/parameters.h"
#include "tutti/step/control_word.h"
#include "tutti/step/tree_sum.h"

namespace tutti {

// Adds up the results of a worker's lanes, one after the other, in a step. For each lane either begin_lane(),
// forward pass, begin_backward(), one backward pass, add(), or skip().
class LaneSum {
 public:
  virtual ~LaneSum() = default;
  // Returns the factor for a lane's mean loss before the backward pass, so that the lane gives the sum. With
  // one lane in all, the mean is used as it is, and nothing has to be scaled, added or divided.
  virtual double weight(int64_t examples) const = 0;
  // Sets the gradients to zero and the buffers to their values before the step.
  virtual void begin_lane() = 0;
  // Takes the lane's mean loss, a single number; undefined if it is not known. All gradients of the lane come
  // from the one backward pass that follows, or are present already.
  virtual void begin_backward(const torch::Tensor& loss, int64_t examples) = 0;
  // Adds the lane, whose gradients are complete.
  virtual void add() = 0;
  // Marks the lane as having no examples.
  virtual void skip() = 0;
  // Returns true while gradients are being sent. Then only add(), if still due, may be called before the end
  // of the step.
  virtual bool is_sending() const = 0;
};

// The numbers of a lane, which are stored in one float64 vector.
enum Number {
  kLoss,              // the sum over its examples
  kExamples,          // the number of its examples
  kLanes,             // 1
  kLanesWithoutLoss,  // 1 if the loss is not known
  kNumbers
};

// The results of one lane after the other, in vectors that can be summed: gradients (the vectors of the
// parameters), floating buffers, and a few numbers. Every lane starts from the buffers as they were before
// the step. With one lane in all nothing has to be summed, so the module's own buffers are used. Not
// thread-safe.
class LaneVectors {
 public:
  // The parameters must outlive this.
  LaneVectors(Parameters& parameters, int64_t lanes, const Allocate& allocate = {});

  // See LaneSum::weight().
  double weight(int64_t examples) const { return one_lane_ ? 1 : static_cast<double>(examples); }
  bool one_lane() const { return one_lane_; }

  // Saves the module's buffers as the values that lanes start from, and copies them to buffers(). Throws
  // InvalidArgument if a parameter has been frozen or unfrozen since the parameters were made.
  void begin_step();
  void save_buffers();
  // From now on, buffers are saved and restored with one lane in all as well.
  void keep_buffers();
  // Sets the module's buffers to the values that were saved.
  void restore_buffers();
  // Sets the gradients to zero and the buffers to the values that were saved.
  void begin_lane();
  // Stores the numbers of a lane; `loss` is its mean loss, or undefined.
  void count(const torch::Tensor& loss, int64_t examples);
  // Called after the backward pass: collects the results of the lane in the vectors.
  void collect();
  // Copies the current values of buffers() to the module.
  void take_over_buffers();

  // The float64 vectors in which the floating buffers are summed. A sum of equal float32 numbers is exact in
  // float64, so a buffer that is the same in all lanes keeps its bits for any number of lanes. With one lane,
  // or for float64 buffers, these are the buffers' own vectors.
  const std::vector<torch::Tensor>& buffers() const { return exact_; }
  // The buffers that are not of a floating type, such as a count of batches. They are not summed: after each
  // lane they are the same, since every lane starts from the values before the step.
  const std::vector<torch::Tensor>& counters() const { return counters_; }
  const torch::Tensor& numbers() const { return numbers_; }
  // Returns a copy of the sum of the losses in the numbers; undefined if the loss of a lane is not known.
  torch::Tensor loss_sum() const;

 private:
  void show_buffers();

  Parameters& parameters_;
  const bool one_lane_;
  const std::vector<torch::Tensor> counters_;
  const std::vector<torch::Tensor> exact_;
  std::vector<torch::Tensor> current_;  // the module's buffers: floating vectors, then counters
  std::vector<torch::Tensor> before_;   // parallel to current_; empty with one lane, unless they are kept
  const torch::Tensor numbers_;
};

// The sum over the lanes of this worker, for another task to complete: a server or a master. Not thread-safe.
class LocalSum final : public LaneSum {
 public:
  // `vectors` must outlive this. Sums `gradients`, the gradients of the parameters, whole or in parts, and
  // then the buffers and the numbers of the vectors. `leaves` are the lanes' places in a tree with `of`
  // leaves.
  LocalSum(LaneVectors& vectors, std::vector<torch::Tensor> gradients, const LaneRange& leaves, int64_t of);

  void begin_step();
  double weight(int64_t examples) const override { return vectors_.weight(examples); }
  void begin_lane() override { vectors_.begin_lane(); }
  void begin_backward(const torch::Tensor& loss, int64_t examples) override {
    vectors_.count(loss, examples);
  }
  void add() override;
  void skip() override { sum_.skip(); }
  bool is_sending() const override { return false; }
  // Returns the sums of all lanes: the subtrees that can be computed on this worker.
  std::vector<TreeSum::Subtree> finish() { return sum_.finish(); }
  // Returns whether the gradients among these sums are finite.
  Gradients gradients_in(const std::vector<TreeSum::Subtree>& subtrees) const;

 private:
  LaneVectors& vectors_;
  const size_t gradients_;  // the number of their vectors
  TreeSum sum_;
};

// Returns the parameters' own gradients, one vector per block.
std::vector<torch::Tensor> gradients_of(const Parameters& parameters);

}  // namespace tutti

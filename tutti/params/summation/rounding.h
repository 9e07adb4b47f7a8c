#pragma once

#include <utility>

#include <torch/types.h>

namespace tutti {

// Rounds a stretch of gradients to fewer bits before it is sent, and adds the rounding error to the next
// stretch, so that nothing is lost over many steps (error feedback). Not thread-safe.
class Rounding {
 public:
  Rounding(torch::ScalarType to, bool keep) : to_(to), keep_(keep) {}

  // Every stretch has the same length. A value beyond the range of the type becomes its largest number.
  torch::Tensor round(const torch::Tensor& exact);

  // The error that is added to the next stretch; undefined if there is none yet.
  const torch::Tensor& lost() const { return lost_; }
  void set_lost(torch::Tensor lost) { lost_ = std::move(lost); }

 private:
  const torch::ScalarType to_;
  const bool keep_;
  torch::Tensor lost_;
};

}  // namespace tutti

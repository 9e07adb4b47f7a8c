#pragma once

#include <torch/types.h>

namespace tutti {

// Rounds a stretch of gradients to fewer bits before it is sent, and keeps what is lost for the next time:
// over the steps nothing is lost then (error feedback). Not thread-safe.
class Rounding {
 public:
  Rounding(torch::ScalarType to, bool keep) : to_(to), keep_(keep) {}

  // Of the same length at every call. What is beyond the range of the type becomes its largest number.
  torch::Tensor round(const torch::Tensor& exact);

 private:
  const torch::ScalarType to_;
  const bool keep_;
  torch::Tensor lost_;
};

}  // namespace tutti

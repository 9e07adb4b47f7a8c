#pragma once

#include <torch/types.h>

// Losses of a batch. A target that is NaN is missing: it adds nothing, and is not counted.
namespace tutti::nn {

// Return the cross-entropy of targets from 0 to 1 and logits of the same shape: the sum over all targets that
// are not missing, or their mean; 0 if all are missing. The weight of the sum relative to a penalty grows
// with the size of a lane's batch.
torch::Tensor xent_uniform_sum(const torch::Tensor& targets, const torch::Tensor& logits);
torch::Tensor xent_uniform_mean(const torch::Tensor& targets, const torch::Tensor& logits);

// Returns the mean squared difference.
torch::Tensor mse(const torch::Tensor& targets, const torch::Tensor& predictions);

// Returns half the sum of the squares, times `factor`.
torch::Tensor l2_penalty(const torch::Tensor& weights, double factor = 1e-4);

}  // namespace tutti::nn

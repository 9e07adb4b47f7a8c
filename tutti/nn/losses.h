#pragma once

#include <torch/types.h>

// Losses of a batch. A target that is NaN is missing: it adds nothing, and is not counted.
namespace tutti::nn {

// Cross-entropy of targets from 0 to 1 and logits of the same shape: summed over what is there, or its mean.
// 0 where nothing is. The sum weighs more against a penalty the larger a lane's batch is.
torch::Tensor xent_uniform_sum(const torch::Tensor& targets, const torch::Tensor& logits);
torch::Tensor xent_uniform_mean(const torch::Tensor& targets, const torch::Tensor& logits);

// The mean squared difference.
torch::Tensor mse(const torch::Tensor& targets, const torch::Tensor& predictions);

// Half the sum of the squares, times `factor`.
torch::Tensor l2_penalty(const torch::Tensor& weights, double factor = 1e-4);

}  // namespace tutti::nn

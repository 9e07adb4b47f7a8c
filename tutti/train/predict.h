#pragma once

#include <cstdint>

#include <torch/types.h>

#include "tutti/data/feed.h"
#include "tutti/train/trainable.h"

namespace tutti {

struct PredictOptions {
  int64_t batch = 500;
};

// Returns the predictions of the model for all examples of the feed, on the CPU, one row each, in the feed's
// order, which is not shuffled; an undefined tensor if there are none. Computes in evaluation mode, without
// gradients, on the device of the model's parameters. Needs no Trainer: Trainer::predict() is for the weights
// of a run.
torch::Tensor predict(const Trainable& model, const data::Feed& feed, const PredictOptions& options = {});

}  // namespace tutti

#pragma once

#include <cstdint>

#include <torch/optim/lbfgs.h>

#include "tutti/cluster/context.h"
#include "tutti/comm/group.h"
#include "tutti/data/feed.h"
#include "tutti/train/trainable.h"

namespace tutti {

struct FullBatchResult {
  double loss = 0;          // the final loss, over all examples
  int64_t evaluations = 0;  // of the loss and its gradient
};

// Trains on all examples at once, for small data: calls torch::optim::LBFGS `calls` times (each makes up to
// max_iter iterations). Every evaluation of the loss covers all examples, each worker those of its lanes,
// which stay in memory. Losses and gradients are added along the tree, so the bits do not depend on the
// number of workers. Random numbers in the model are the same in every evaluation. There are no checkpoints
// and no hooks: this is meant for trainings that end soon.
//
// Every worker has to call it, with the same model and its own part of the feed. Throws InvalidArgument if
// the final loss is not finite.
FullBatchResult fit_full_batch(const Context& context, const Trainable& model, const data::Feed& feed,
                               const torch::optim::LBFGSOptions& options, int64_t calls, const Group& group);

}  // namespace tutti

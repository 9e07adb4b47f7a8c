#pragma once

#include <cstdint>

#include <torch/optim/lbfgs.h>

#include "tutti/cluster/context.h"
#include "tutti/comm/communicator.h"
#include "tutti/data/feed.h"
#include "tutti/train/trainable.h"

namespace tutti {

struct FullBatchResult {
  double loss = 0;          // where it ended, over all examples
  int64_t evaluations = 0;  // of the loss and its gradient
};

// Trains on all examples at once, for small data: torch::optim::LBFGS, called so many times (each makes up to
// max_iter iterations). Every evaluation of the loss goes over all examples, each worker over its lanes',
// which stay in memory; losses and gradients are added along the tree, so that the bits do not depend on the
// number of workers. What is random in the model is the same in every evaluation. Neither checkpoints nor
// hooks: it is over soon, or it is not for this.
//
// Every worker calls it, with the same model and its own part of the feed. InvalidArgument: a loss that is no
// number where the search ends.
FullBatchResult fit_full_batch(const Context& context, const Trainable& model, const data::Feed& feed,
                               const torch::optim::LBFGSOptions& options, int64_t calls,
                               comm::Communicator& comm);

}  // namespace tutti

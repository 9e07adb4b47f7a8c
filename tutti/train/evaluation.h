#pragma once

#include <cstdint>
#include <functional>

#include <torch/types.h>

#include "tutti/cluster/context.h"
#include "tutti/data/batch.h"
#include "tutti/data/feed.h"
#include "tutti/data/sampler.h"
#include "tutti/metrics/metric.h"
#include "tutti/params/lanes.h"

// How a feed is evaluated, by a Trainer or a Loop: batch by batch, in the order of the feed. The batches
// depend on the lanes of the run only if each lane has its own examples, and never on the number of workers,
// so metrics have the same bits on any number.
namespace tutti {

// Returns the sampler of an evaluation in `parts` parts. Part i has the batches of
// lanes_of(i, parts, sampler.options().lanes).
data::Sampler evaluation_sampler(const data::Feed& feed, int64_t lanes_of_run, int parts, int64_t batch);

// Calls `body` for each batch of these lanes that has examples. The device is the one that uses the batches.
void for_each_batch(const Context& context, const data::Feed& feed, const data::Sampler& sampler,
                    const LaneRange& lanes, torch::Device device,
                    const std::function<void(const Batch&)>& body);

// Returns the metrics and, unless one of them is called "loss", the mean of a loss function as "loss".
metrics::List with_mean_loss(metrics::List list, const std::function<torch::Tensor(const Batch&)>& loss);

}  // namespace tutti

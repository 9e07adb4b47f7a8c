#pragma once

#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/base/json.h"
#include "tutti/data/batch.h"
#include "tutti/metrics/metric.h"
#include "tutti/params/parameters.h"
#include "tutti/ps/wire.h"
#include "tutti/rpc/message.h"

// The messages between a master and its passive workers (passive/workers.h).
namespace tutti::passive {

// Returns all tensors, besides the data, that a step depends on: values, buffers, counters. They are views.
std::vector<torch::Tensor> everything(const Parameters& parameters);
// Returns the tensors that do not change during steps.
std::vector<torch::Tensor> frozen(const Parameters& parameters);

// Appends the tensors to the pieces, on the CPU and in row-major order.
void append(rpc::Message& message, const std::vector<torch::Tensor>& tensors);
// Copies the next pieces into the tensors, on any device.
void take_into(ps::Reader& reader, const std::vector<torch::Tensor>& tensors);

// Appends the tensors of the batch to the pieces; returns its outline: names, types and shapes.
Json append(rpc::Message& message, const Batch& batch);
Batch take_batch(ps::Reader& reader, const Json& outline);

// The key under which a master sends the counts of a metric.
inline std::string note_of(const metrics::Metric& metric) { return "metric " + metric.name(); }

}  // namespace tutti::passive

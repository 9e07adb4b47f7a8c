#pragma once

#include <vector>

#include <torch/types.h>

#include "tutti/base/json.h"
#include "tutti/data/batch.h"
#include "tutti/params/parameters.h"
#include "tutti/ps/wire.h"
#include "tutti/rpc/message.h"

// What a master and its passive workers send each other (passive/workers.h).
namespace tutti::passive {

// All that a step begins with, beside the data: values, buffers, counters. Views into what the module has.
std::vector<torch::Tensor> everything(const Parameters& parameters);
// What does not change while steps are made.
std::vector<torch::Tensor> frozen(const Parameters& parameters);

// Adds them to the pieces as they lie in row-major order, from the CPU.
void append(rpc::Message& message, const std::vector<torch::Tensor>& tensors);
// Copies the next pieces into them, wherever they are.
void take_into(ps::Reader& reader, const std::vector<torch::Tensor>& tensors);

// Its names and what its tensors look like; they are added to the pieces.
Json append(rpc::Message& message, const Batch& batch);
Batch take_batch(ps::Reader& reader, const Json& outline);

}  // namespace tutti::passive

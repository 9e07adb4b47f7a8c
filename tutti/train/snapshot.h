#pragma once

#include <string>

#include "tutti/params/optimizer.h"
#include "tutti/params/parameters.h"
#include "tutti/store/checkpoint.h"

namespace tutti {

// Everything of a model that a checkpoint holds, by name: parameters, frozen ones and buffers, and of the
// optimiser "exp_avg/conv1.weight". The tensors are the model's own: write them before the next step.
store::Checkpoint snapshot(const Parameters& parameters, const OptimizerOptions& optimizer,
                           const Optimizer::State& state);

// The other way round. Where the checkpoint is of another model or optimiser, an InvalidArgument lists what
// differs, by name and shape, and what to do; nothing is changed then. Returns what the optimiser goes on
// with.
Optimizer::State restore(Parameters& parameters, const Optimizer& optimizer,
                         const store::Checkpoint& checkpoint, const std::string& where);

}  // namespace tutti

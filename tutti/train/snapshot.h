#pragma once

#include <string>

#include "tutti/params/optimizer.h"
#include "tutti/params/parameters.h"
#include "tutti/store/checkpoint.h"

namespace tutti {

// Returns the tensors of a model for a checkpoint, by name: parameters, frozen parameters, buffers, and those
// of the optimiser as "exp_avg/conv1.weight", or "archive" if it is a ReplicatedOptimizer. They are the
// model's own: write them before the next step.
store::Checkpoint snapshot(const Parameters& parameters, const OptimizerOptions& optimizer,
                           const Optimizer::State& state);

// Returns slots, or parts of them, as tensors with the names of the parameters. A part of a parameter is
// flat, in the order of memory, and named with its elements: "exp_avg/conv1.weight[128:256]".
std::vector<store::NamedTensor> tensors_of(const Parameters& parameters,
                                           const std::vector<Optimizer::Slot>& slots);

// Restores the model from a checkpoint and returns the optimiser's state. If the checkpoint belongs to
// another model or optimiser, changes nothing and throws an InvalidArgument that lists the differences, by
// name and shape, and says what to do.
Optimizer::State restore(Parameters& parameters, const Optimizer& optimizer,
                         const store::Checkpoint& checkpoint, const std::string& where);

// Restores only weights and buffers, whatever optimiser they were trained with.
void restore_weights(Parameters& parameters, const store::Checkpoint& checkpoint, const std::string& where);

// Adds one of several nets to a checkpoint: the tensors of `part` become "NAME.conv1.weight" in `whole`.
void add_part(store::Checkpoint& whole, const std::string& name, store::Checkpoint part);
// Returns the part of this name, with its original tensor names. Throws InvalidArgument if there is none.
store::Checkpoint part_of(const store::Checkpoint& whole, const std::string& name, const std::string& where);

}  // namespace tutti

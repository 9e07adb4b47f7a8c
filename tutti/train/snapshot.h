#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/params/optimizer.h"
#include "tutti/params/parameters.h"
#include "tutti/store/checkpoint.h"
#include "tutti/store/named_tensors.h"

namespace tutti {

using store::Snapshot;
using Snapshots = std::map<std::string, Snapshot>;  // by the name of the part

// A number for the values of a snapshot, and back. Infinity and NaN, which JSON does not have, become the
// strings "inf", "-inf" and "nan"; null, which earlier versions wrote, is read as NaN. Throws a DataLoss that
// names `what` for any other value.
Json json_of_number(double number);
double number_of_json(const Json& value, std::string_view what);

// A part of a run that a resumed run must find again, besides the model and its optimiser, such as a moving
// average. Checkpoints contain it under its name.
struct StatePart {
  // Returns the state between two steps. The tensors may be the part's own: they are copied before the next
  // step. Called on every worker; checkpoints contain what the chief returns.
  std::function<Snapshot()> snapshot;
  // Takes the state of a checkpoint, before the first step. Called on all workers that are connected to each
  // other, and otherwise only on the chief; not called if the checkpoint does not contain the part. Throws
  // InvalidArgument if the state does not fit.
  std::function<void(const Snapshot&)> restore;
};

class RemoteModule;

// The parameters, the buffers and the optimiser's state of a module that another task serves:
//   trainer.state("tail", remote_state(tail));
// If several workers are connected and use the module, only the chief adds it, so that it is restored once.
StatePart remote_state(RemoteModule module);

// Returns the tensors of a model for a checkpoint, by name: parameters, frozen parameters, buffers, and those
// of the optimiser as "exp_avg/conv1.weight", or "archive" if it is a ReplicatedOptimizer. They are the
// model's own: write them before the next step.
store::Checkpoint snapshot(const Parameters& parameters, const OptimizerOptions& optimizer,
                           const Optimizer::State& state);

// Returns slots, or parts of them, as tensors with the names of the parameters. A part of a parameter is
// flat, in the order of memory, and named with its elements: "exp_avg/conv1.weight[128:256]".
store::NamedTensors tensors_of(const Parameters& parameters, const std::vector<Optimizer::Slot>& slots);

// Restores the model from a checkpoint and returns the optimiser's state. If the checkpoint belongs to
// another model or optimiser, changes nothing and throws an InvalidArgument that lists the differences, by
// name and shape, and says what to do.
Optimizer::State restore(Parameters& parameters, const Optimizer& optimizer,
                         const store::Checkpoint& checkpoint, const std::string& where);

// Restores only weights and buffers, whatever optimiser they were trained with.
void restore_weights(Parameters& parameters, const store::Checkpoint& checkpoint, const std::string& where);

// Adds one of several nets to a checkpoint: the tensors of `part` become "NAME.conv1.weight" in `whole`. The
// only net has no name: `part` becomes the whole.
void add_part(store::Checkpoint& whole, const std::string& name, store::Checkpoint part);
// Returns the part of this name, with its original tensor names. Throws InvalidArgument if there is none. The
// part of the only net, which has no name, is the whole.
store::Checkpoint part_of(const store::Checkpoint& whole, const std::string& name, const std::string& where);

}  // namespace tutti

#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/store/safetensors.h"

namespace tutti {

class RemoteModule;

// The state of one part of a run after a step: tensors and other values.
struct Snapshot {
  std::vector<store::NamedTensor> tensors = {};
  Json values = Json::object();
};
using Snapshots = std::map<std::string, Snapshot>;  // by the name of the part

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

// The parameters, the buffers and the optimiser's state of a module that another task serves:
//   trainer.state("tail", remote_state(tail));
// If several workers are connected and use the module, only the chief adds it, so that it is restored once.
StatePart remote_state(RemoteModule module);

}  // namespace tutti

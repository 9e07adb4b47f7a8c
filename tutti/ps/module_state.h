#pragma once

#include <vector>

#include "tutti/params/optimizer.h"
#include "tutti/params/parameters.h"
#include "tutti/store/named_tensor.h"

namespace tutti::ps {

// Returns everything of a module that a checkpoint has to hold, by name: trained and frozen parameters,
// buffers, the optimiser's slots ("exp_avg/conv1.weight") and its number of steps ("adam/steps"). The
// module's tensors are not copied.
std::vector<store::NamedTensor> state_of(const Parameters& parameters, const Optimizer& optimizer);

// Restores such a state. If it does not match the module and the optimiser, throws an InvalidArgument that
// names the first difference, and changes nothing.
void load_state(Parameters& parameters, Optimizer& optimizer, const std::vector<store::NamedTensor>& state);

}  // namespace tutti::ps

#pragma once

#include <vector>

#include "tutti/params/optimizer.h"
#include "tutti/params/parameters.h"
#include "tutti/store/named_tensor.h"

namespace tutti::ps {

// All of a module that a checkpoint has to hold, by name: parameters, frozen ones and buffers; of what the
// optimiser has learnt "exp_avg/conv1.weight", and the number of its steps, "adam/steps". The tensors of the
// module are its own.
std::vector<store::NamedTensor> state_of(const Parameters& parameters, const Optimizer& optimizer);

// The other way round. Where it is not of this module and optimiser, an InvalidArgument names the first that
// differs, and nothing is changed.
void load_state(Parameters& parameters, Optimizer& optimizer, const std::vector<store::NamedTensor>& state);

}  // namespace tutti::ps

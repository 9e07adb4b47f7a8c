#pragma once

#include <string>

#include <torch/optim/optimizer.h>
#include <torch/types.h>

namespace tutti {

// Returns what the optimiser saves of itself, as bytes. Throws InvalidArgument that names it if it does not
// implement save().
torch::Tensor archive_of(const torch::optim::Optimizer& optimizer, const std::string& name);
// Restores what archive_of() has returned, except for the options of the groups, which stay as the program
// has set them. Throws InvalidArgument if the bytes belong to another optimiser or to other parameters.
void load_archive(torch::optim::Optimizer& optimizer, const torch::Tensor& archive, const std::string& name);

}  // namespace tutti

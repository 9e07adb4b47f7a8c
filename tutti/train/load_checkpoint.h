#pragma once

#include <map>
#include <string>

#include <torch/nn/module.h>
#include <torch/types.h>

namespace tutti {

// Copies the tensors of the checkpoint in `folder`, by name, into the module of the program that has trained
// it. Throws InvalidArgument if the module is another one; the text names their first difference.
void load_checkpoint_weights(torch::nn::Module& module, const std::map<std::string, torch::Tensor>& tensors,
                             const std::string& folder);

}  // namespace tutti

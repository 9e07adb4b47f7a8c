#pragma once

#include <string_view>
#include <vector>

#include "tutti/store/safetensors.h"

namespace tutti {

// Prints a table of tensors: name, type, shape, size, and the range of the values.
void print_tensors(std::string_view heading, const std::vector<store::NamedTensor>& tensors);

}  // namespace tutti

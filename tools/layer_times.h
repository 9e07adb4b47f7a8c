#pragma once

#include <vector>

#include "tools/machine.h"

namespace tutti {

// Measures layers of usual sizes on the CPU, in fp32 and in bf16, with weights in float32 as in a training.
// Takes less than a second.
std::vector<LayerTimes> time_layers();

}  // namespace tutti

#pragma once

#include <memory>
#include <string_view>

#include <c10/core/Device.h>

#include "tutti/base/log.h"
#include "tutti/kernels/same_kernels.h"

namespace tutti {

// Returns the kernels that a value of --kernels asks for; null: LibTorch's. Says so if this processor is slow
// with them. Throws Unimplemented if the device is not the CPU.
std::shared_ptr<kernels::SameKernels> chosen_kernels(std::string_view kernels, c10::Device device,
                                                     const Log& log);

}  // namespace tutti

#pragma once

#include <memory>
#include <string_view>

#include <c10/core/Device.h>

#include "tutti/base/log.h"
#include "tutti/kernels/same_kernels.h"

namespace tutti {

// Returns the kernels that a value of --kernels asks for; null: LibTorch's. Says so if this processor is slow
// with them. On a GPU, "auto" also excludes, in the whole process and from then on, algorithms of cuDNN that
// do not give the same bits each time, and "same" and "strict" throw Unimplemented.
std::shared_ptr<kernels::SameKernels> chosen_kernels(std::string_view kernels, c10::Device device,
                                                     const Log& log);

}  // namespace tutti

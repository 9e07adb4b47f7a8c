#pragma once

#include <memory>

#include "tutti/train/hook.h"

namespace tutti::hooks {

// Ends the training with an InvalidArgument when the loss is no longer a finite number, before the parameters
// take harm, and names the first tensor that went bad: of the batch, the parameters, the buffers, the
// predictions or the gradients. Looks at every step on the CPU, at every 25th on a GPU, which it has to wait
// for.
std::unique_ptr<Hook> nan_guard();

}  // namespace tutti::hooks

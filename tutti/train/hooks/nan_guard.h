#pragma once

#include "tutti/train/replica.h"

namespace tutti::hooks {

// Ends the training with an InvalidArgument when the loss is no longer a finite number, before the parameters
// take harm, of this worker or another, and names the first tensor that went bad: of the batch, the
// parameters, the buffers or the predictions. Looks at every step on the CPU, at every 25th on a GPU, which
// it has to wait for. What goes wrong in between is not saved (RunFolder).
LossCheck nan_guard();

}  // namespace tutti::hooks

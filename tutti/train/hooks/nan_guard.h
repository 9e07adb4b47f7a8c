#pragma once

#include "tutti/train/replica.h"

namespace tutti::hooks {

// Ends the training with an InvalidArgument when the loss is not finite, before the parameters of any worker
// are updated with it, and names the first bad tensor of the batch, the parameters, the buffers or the
// predictions. Checks every step on the CPU, and every 25th on a GPU, since reading the loss waits for the
// GPU. If weights become bad between two checks, they are not saved (see RunFolder).
LossCheck nan_guard();

}  // namespace tutti::hooks

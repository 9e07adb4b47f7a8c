#pragma once

#include <chrono>
#include <memory>

#include "tutti/train/hook.h"

namespace tutti::hooks {

// Shows the progress on stderr: a live line on a terminal ("step 1,200/5,000  loss 0.0312  1,893 examples/s
// 0:34 left"), otherwise a plain line every ten seconds. On the chief only.
std::unique_ptr<Hook> progress();

}  // namespace tutti::hooks

#pragma once

#include <memory>
#include <string>

#include "tutti/base/every.h"
#include "tutti/train/hook.h"

namespace tutti::hooks {

// Records every operator of LibTorch in these steps into the context's timeline, on all workers. Without
// --timeline, only the chief records them, and writes them to `file` (trace_events.h).
std::unique_ptr<Hook> profile(StepInterval steps, std::string file);

}  // namespace tutti::hooks

#pragma once

#include <memory>

#include "tutti/base/every.h"
#include "tutti/train/hook.h"

namespace tutti::hooks {

// Saves a checkpoint at the given interval of steps or seconds, and one at the end.
std::unique_ptr<Hook> checkpoint(Every every);

}  // namespace tutti::hooks

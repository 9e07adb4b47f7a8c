#pragma once

#include <memory>

#include "tutti/base/every.h"
#include "tutti/train/hook.h"

namespace tutti::hooks {

// Saves a checkpoint every so many steps or seconds, and one at the end.
std::unique_ptr<Hook> checkpoint(Every every);

}  // namespace tutti::hooks

#pragma once

#include <memory>
#include <vector>

#include "tutti/base/flags.h"
#include "tutti/train/hook.h"

namespace tutti::hooks {

// Those that the flags ask for: progress, profile, and with a log directory summaries and checkpoints.
std::vector<std::unique_ptr<Hook>> of_flags(const Flags& flags);

}  // namespace tutti::hooks

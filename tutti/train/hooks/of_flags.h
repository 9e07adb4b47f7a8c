#pragma once

#include <memory>
#include <vector>

#include "tutti/base/config.h"
#include "tutti/train/hook.h"

namespace tutti::hooks {

// Returns the hooks that the flags ask for: progress, profile, and with a log directory summaries and, as the
// last one, checkpoints.
std::vector<std::unique_ptr<Hook>> of_flags(const RunConfig& config);

// Adds a hook of the program to them, before the one that saves checkpoints: a checkpoint includes what hooks
// have changed after the step.
void add(std::vector<std::unique_ptr<Hook>>& hooks, const RunConfig& config, std::unique_ptr<Hook> hook);

}  // namespace tutti::hooks

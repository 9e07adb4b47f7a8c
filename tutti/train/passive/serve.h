#pragma once

#include <optional>

#include "tutti/cluster/context.h"
#include "tutti/train/trainable.h"

namespace tutti {

// Runs a passive worker for the master of this cluster (passive/master.h) until the master ends. With a model
// the worker computes that model; without one it runs the programs that a master sends, which requires
// --allow-programs. Throws Interrupted after SIGTERM or SIGINT.
void follow_master(const Context& context, const std::optional<Trainable>& model = std::nullopt);

}  // namespace tutti

#pragma once

#include <optional>

#include "tutti/cluster/context.h"
#include "tutti/train/trainable.h"

namespace tutti {

// Is a passive worker of the master of this cluster (passive/master.h), until that has come to its end: with
// this model; or without one, for any program that a master sends, where --allow-programs lets it. After
// SIGTERM or SIGINT it throws Interrupted.
void follow_master(const Context& context, const std::optional<Trainable>& model = std::nullopt);

}  // namespace tutti

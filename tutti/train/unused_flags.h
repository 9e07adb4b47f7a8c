#pragma once

#include <string>
#include <vector>

#include "tutti/base/config.h"
#include "tutti/cluster/context.h"

namespace tutti {

// How a training makes its steps, as far as it decides which flags matter.
struct WayOfTraining {
  std::string strategy;  // of --strategy, never ""
  int workers = 1;
  bool has_servers = false;
  bool has_tables = false;  // the model has sharded embeddings
};

// Returns why flags that were given change nothing in such a training, one line for each of them.
std::vector<std::string> unused_flags(const RunConfig& config, const WayOfTraining& way);
// Logs them as warnings of the chief, for a training of all workers of the context.
void warn_of_unused_flags(const Context& context, WayOfTraining way);

}  // namespace tutti

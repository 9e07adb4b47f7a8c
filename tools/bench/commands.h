#pragma once

#include "tools/commands.h"

namespace tutti {

// The benchmarks, one command each.
CommandFunction bench_collectives;
CommandFunction bench_embedding;
CommandFunction bench_ps;

}  // namespace tutti

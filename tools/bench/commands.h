#pragma once

#include "tools/commands.h"

namespace tutti {

// What can be measured, a command each.
CommandFunction bench_collectives;
CommandFunction bench_ps;

}  // namespace tutti

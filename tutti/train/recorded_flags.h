#pragma once

#include "tutti/cluster/context.h"
#include "tutti/store/checkpoint.h"

namespace tutti {

// Puts the flags of the program, but for those of a single process, into a checkpoint, so that a later
// process can make the same model (tutti export).
inline void record_flags(const Context& context, store::Checkpoint& checkpoint) {
  for (const FlagValue& flag : context.flag_values()) {
    if (flag.scope != FlagScope::Local) checkpoint.state["flags"][flag.name] = flag.text;
  }
}

}  // namespace tutti

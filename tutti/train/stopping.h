#pragma once

#include <cstdint>

#include "tutti/train/hook.h"
#include "tutti/train/stop_signals.h"

// How a training ends before its last step.
namespace tutti {

// What this worker asks of all (Wishes::stop): 0 to go on, else to stop, by a hook or, which is more, by a
// signal.
int64_t wish_to_stop(const Training& training, const StopSignals& signals);

// It has come to its end, since all have agreed on this: says so, if it was a hook's wish; if a signal's,
// throws Interrupted.
void end_as_wished(const Training& training, int64_t wish, const StopSignals& signals);

}  // namespace tutti

#pragma once

#include <cstdint>

#include "tutti/train/hook.h"
#include "tutti/train/stop_signals.h"

// Functions that end a training before its last step.
namespace tutti {

// Returns this worker's requests to end the training: those of its hooks and of a signal.
Wishes wish_to_stop(const Training& training, const StopSignals& signals);

// Called when the training has ended because of these requests of all workers. Logs the reason of a hook; if
// there was a signal, throws Interrupted.
void end_as_wished(const Training& training, const Wishes& wishes, const StopSignals& signals);

}  // namespace tutti

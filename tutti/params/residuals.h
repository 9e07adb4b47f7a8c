#pragma once

#include "tutti/cluster/context.h"
#include "tutti/comm/communicator.h"
#include "tutti/params/gradient_mean.h"
#include "tutti/params/optimizer.h"
#include "tutti/params/parameters.h"

// The residuals of rounding to --wire-precision are part of the run's state: without them the next gradients
// differ. A checkpoint stores them beside the optimiser's state, in slots that each belong to one worker:
// "unsent.1of4.0" is for the first subtree that worker 1 of 4 sends, "unsent.4" for the sums that the 4
// workers hand out. Every worker has to call these functions, between two steps.
namespace tutti {

// Adds the residuals of all workers to `state` at rank 0. Does nothing if there are none.
void gather_residuals(comm::Communicator& comm, const Parameters& parameters, const GradientMean& mean,
                      Optimizer::State& state);

// Removes the residuals from `state` at rank 0 and distributes them to the workers. They are valid for one
// number of workers: with another number they are dropped, and a warning is logged.
void restore_residuals(const Context& context, comm::Communicator& comm, const Parameters& parameters,
                       GradientMean& mean, Optimizer::State& state);

}  // namespace tutti

#pragma once

#include "tutti/cluster/context.h"
#include "tutti/comm/communicator.h"
#include "tutti/metrics/metric.h"
#include "tutti/params/parameters.h"
#include "tutti/params/reducer.h"
#include "tutti/train/session.h"

// Functions of workers that are connected to each other, besides the steps. Every worker has to call them.
namespace tutti {

// Starts a run: only rank 0 reads the checkpoint, since the others may be on machines without it. The others
// receive progress and lanes; the caller still has to send the parameters and the optimiser's state.
Session::Start start_together(const Context& context, comm::Communicator& comm, Session& session);

// Throws InvalidArgument if the communicator connects only some of the workers, and there is a log directory:
// each group would read and write the same checkpoints there, or none.
void require_whole_group(const Context& context, const comm::Communicator& comm);

// Returns the facts that a resumed run must share with its checkpoint, for any kind of training.
RunFacts facts_of(const Context& context, const ReducerOptions& reducer, double clip_norm, int world,
                  const Parameters& parameters);

// Merges the counts of all workers, on each of them.
void merge(comm::Communicator& comm, metrics::Metric& metric);

}  // namespace tutti

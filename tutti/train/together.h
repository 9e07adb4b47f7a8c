#pragma once

#include "tutti/cluster/context.h"
#include "tutti/comm/communicator.h"
#include "tutti/metrics/metric.h"
#include "tutti/train/session.h"

// What workers that talk to each other do together beside the steps: each of them calls the same.
namespace tutti {

// Rank 0 alone reads the checkpoint, since the others may be on machines without it. They hear of progress
// and lanes; the parameters and the optimiser's state are yet to be sent.
Session::Start start_together(const Context& context, comm::Communicator& comm, Session& session);

// What all have counted, on each of them.
void merge(comm::Communicator& comm, metrics::Metric& metric);

}  // namespace tutti

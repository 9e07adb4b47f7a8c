#pragma once

#include <functional>
#include <string>

#include "tutti/cluster/context.h"
#include "tutti/comm/communicator.h"
#include "tutti/metrics/metric.h"
#include "tutti/train/session.h"
#include "tutti/train/strategy.h"

// Functions of workers that are connected to each other, besides the steps. Every worker has to call them.
namespace tutti {

// Runs `body` on the chief alone, for work with its disk, while the other ranks wait for up to ten times
// --timeout. If `body` throws, the communicator is abandoned, so that the other ranks learn the reason.
void on_chief(const Context& context, comm::Communicator& comm, const comm::Options& options,
              const std::function<void()>& body);
// See Strategy::share().
Json share(const Context& context, comm::Communicator& comm, const std::string& what,
           const Strategy::MakeValue& make);
// Starts a run: only the chief reads the checkpoint, since the others may be on machines without it. The
// others receive progress, lanes and further parts; the caller still has to send the parameters and the
// optimiser's state.
Session::Start start_together(const Context& context, comm::Communicator& comm, Session& session);
// Merges the counts of all workers, on each of them, in one exchange.
void merge(comm::Communicator& comm, const metrics::List& list);
// Returns the parts, at rank 0 with the random generators of all ranks.
Snapshots gather_generators(comm::Communicator& comm, Snapshots parts);

}  // namespace tutti

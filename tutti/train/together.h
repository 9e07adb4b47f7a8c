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
// receive progress, lanes and further parts; the caller still has to send the parameters and the optimiser's
// state.
Session::Start start_together(const Context& context, comm::Communicator& comm, Session& session);

// Waits, on all ranks, until rank 0 has written all checkpoints.
void finish_saving(const Context& context, comm::Communicator& comm, Session& session);

// The part of a checkpoint with the states of LibTorch's random generators. Each rank has its own.
inline constexpr const char* kGenerators = "random";
StatePart generators_part(torch::Device device, int rank);
// Returns the parts, at rank 0 with the generators of all ranks.
Snapshots gather_generators(comm::Communicator& comm, Snapshots parts);

// Returns the facts that a resumed run must share with its checkpoint, for any kind of training.
RunFacts facts_of(const Context& context, const ReducerOptions& reducer, double clip_norm, int world,
                  const Parameters& parameters);

// Merges the counts of all workers, on each of them.
void merge(comm::Communicator& comm, metrics::Metric& metric);

}  // namespace tutti

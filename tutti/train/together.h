#pragma once

#include <string>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/metrics/metric.h"
#include "tutti/train/replica.h"

namespace tutti {

// What has to be the same on every worker for their steps to fit: parameters, optimiser and options, a line
// each.
std::vector<std::string> plan_of(const Replica& replica);

// Compares every worker's plan with that of rank 0. The first line that differs, and who has it, is the
// InvalidArgument that all of them throw.
void require_same_plan(comm::Communicator& comm, const std::vector<std::string>& plan);

// Values, buffers and the state of the optimiser as rank 0 has them.
void copy_from_first(comm::Communicator& comm, Replica& replica);

// Numbers as rank 0 has them.
void copy_from_first(comm::Communicator& comm, std::vector<int64_t>& numbers);

// What all workers have counted, on each of them.
void merge(comm::Communicator& comm, metrics::Metric& metric);

}  // namespace tutti

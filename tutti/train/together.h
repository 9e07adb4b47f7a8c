#pragma once

#include "tutti/comm/communicator.h"
#include "tutti/metrics/metric.h"

namespace tutti {

// What all workers have counted, on each of them.
void merge(comm::Communicator& comm, metrics::Metric& metric);

}  // namespace tutti

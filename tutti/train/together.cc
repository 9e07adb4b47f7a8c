#include "tutti/train/together.h"

#include <vector>

#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/params/agreement.h"

namespace tutti {

void merge(comm::Communicator& comm, metrics::Metric& metric) {
  if (comm.world() == 1) return;
  const auto all = gather_all(comm, torch::tensor(metric.counters(), torch::kDouble), "metrics");
  metric.reset();
  for (const torch::Tensor& theirs : all)
    metric.merge({static_cast<const double*>(theirs.data_ptr()), static_cast<size_t>(theirs.numel())});
}

}  // namespace tutti

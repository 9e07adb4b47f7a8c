#include "tutti/train/together.h"

#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/comm/gather_all.h"
#include "tutti/params/agreement.h"

namespace tutti {

Session::Start start_together(const Context& context, comm::Communicator& comm, Session& session) {
  Session::Start start;
  on_chief(context, comm, {.what = "the checkpoint"}, [&] { start = session.start(); });
  const Progress& progress = start.progress;
  const torch::Tensor numbers = torch::tensor({progress.step, progress.fit, progress.fit_begin,
                                               progress.examples, progress.restarts, session.lanes()},
                                              torch::kInt64);
  comm.broadcast(numbers, 0, {.what = "the progress"}).wait();
  const auto* n = static_cast<const int64_t*>(numbers.data_ptr());
  start.progress = {n[0], n[1], n[2], n[3], n[4]};
  session.follow(n[5]);
  return start;
}

void merge(comm::Communicator& comm, metrics::Metric& metric) {
  if (comm.world() == 1) return;
  const auto all = gather_all(comm, torch::tensor(metric.counters(), torch::kDouble), "metrics");
  metric.reset();
  for (const torch::Tensor& theirs : all)
    metric.merge({static_cast<const double*>(theirs.data_ptr()), static_cast<size_t>(theirs.numel())});
}

}  // namespace tutti

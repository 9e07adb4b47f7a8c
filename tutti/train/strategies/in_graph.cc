#include "tutti/train/strategies/in_graph.h"

#include <utility>
#include <vector>

#include "tutti/base/timeline.h"
#include "tutti/params/buckets.h"
#include "tutti/params/clip_norm.h"

namespace tutti {

StepResult InGraph::step(int64_t step, const Wishes& wishes, data::BatchQueue& queue,
                         const LaneObserver& observe) {
  Timeline* timeline = replica_.options().timeline;
  std::vector<Batch> all;
  for (int worker = 0; worker < master_.workers(); ++worker) {
    const LaneRange lanes = master_.lanes_of(worker);
    std::vector<Batch> batches;
    for (int64_t lane = lanes.begin; lane < lanes.end; ++lane) batches.push_back(take(queue, step));
    all.insert(all.end(), batches.begin(), batches.end());
    if (lanes.size() > 0) master_.gradients(worker, std::move(batches));
  }
  const Master::Mean mean = [&] {
    const SpanScope span(timeline, Activity::Wait, "gradients", step);
    return master_.average();
  }();
  for (size_t lane = 0; lane < mean.outputs.size(); ++lane) {
    if (mean.outputs[lane]) observe(static_cast<int64_t>(lane), all[lane], *mean.outputs[lane]);
  }
  {
    const SpanScope span(timeline, Activity::Compute, "update", step);
    if (mean.examples > 0 && clip_norm_ > 0) clip_norm(buckets_of(replica_.parameters()), clip_norm_);
    master_.apply();
  }
  wishes_ = wishes;
  wishes_.add(mean.wishes);
  return {step + 1, true, mean.examples, mean.loss_sum, wishes_};
}

}  // namespace tutti

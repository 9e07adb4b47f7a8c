#include "tutti/train/strategies/ps_async.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/timeline.h"
#include "tutti/comm/reduce_on_device.h"
#include "tutti/params/buckets.h"

namespace tutti {
namespace {

using Tensors = std::vector<torch::Tensor>;

// Copies in the calling thread, so that kernels of the training keep the threads of this process.
void copy(const Tensors& from, const Tensors& to) {
  for (size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
}

void copy(const ps::Extras& from, const ps::Extras& to) {
  copy(from.buffers, to.buffers);
  copy(from.counters, to.counters);
}

void subtract_from(const Tensors& now, const Tensors& before) {
  for (size_t i = 0; i < now.size(); ++i) before[i].copy_(now[i] - before[i]);
}

Tensors like(const Tensors& vectors) {
  Tensors all;
  for (const torch::Tensor& vector : vectors) all.push_back(torch::zeros_like(vector));
  return all;
}

}  // namespace

PsAsync::PsAsync(Replica& replica, ps::Client& client, LaneVectors& vectors, const PsAsyncOptions& options)
    : replica_(replica),
      client_(client),
      vectors_(vectors),
      options_(options),
      block_(lanes_of(options.rank, options.world, options.lanes)),
      gradients_(gradients_of(replica.parameters())),
      sum_(vectors, gradients_, {0, block_.size()}, std::max<int64_t>(1, block_.size())),
      lanes_(replica, sum_, block_),
      results_({like(vectors.buffers()), like(vectors.counters())}),
      going_(like_ours()),
      coming_(like_ours()) {}

PsAsync::~PsAsync() = default;

PsAsync::Vectors PsAsync::like_ours() const {
  const auto one = [&](const torch::Tensor& like) {
    const auto options = like.options().device(torch::kCPU);
    const torch::Tensor flat =
        options_.allocate ? options_.allocate(like.numel(), options) : torch::zeros({like.numel()}, options);
    return flat.view(like.sizes());
  };
  Vectors all;
  for (const torch::Tensor& vector : gradients_) all.blocks.push_back(one(vector));
  for (const torch::Tensor& vector : vectors_.buffers()) all.extras.buffers.push_back(one(vector));
  for (const torch::Tensor& counter : vectors_.counters()) all.extras.counters.push_back(one(counter));
  return all;
}

StepResult PsAsync::make(int64_t step, const Wishes& wishes, data::BatchQueue& queue,
                         const LaneObserver& observe) {
  now_ = step;
  const int64_t of = values_step_ < 0 ? step : values_step_;
  const bool any_data = compute(step, queue, observe);
  const torch::NoGradGuard no_grad;
  if (any_data && options_.clip_norm > 0) clip_norm(buckets_of(replica_.parameters()), options_.clip_norm);
  copy(vectors_.buffers(), results_.buffers);
  subtract_from(vectors_.counters(), results_.counters);
  StepResult result = end_push();
  if (any_data && (end_ < 0 || result.step < end_)) {
    start_push(of);
    if (!options_.overlap) result = end_push();
  }
  result.wishes = wishes;
  return result;
}

// Leaves the mean of this worker's lanes in gradients and buffers. Returns false if no lane had data.
bool PsAsync::compute(int64_t step, data::BatchQueue& queue, const LaneObserver& observe) {
  {
    const torch::NoGradGuard no_grad;
    vectors_.begin_step();
    copy(vectors_.counters(), results_.counters);
  }
  sum_.begin_step();
  lanes_.run_step(step, queue, observe);
  const auto subtrees = sum_.finish();
  const torch::NoGradGuard no_grad;
  const bool any_data = std::any_of(subtrees.begin(), subtrees.end(), [](const TreeSum::Subtree& subtree) {
    return subtree.values.has_value();
  });
  if (!any_data) return false;
  examples_ = vectors_.numbers()[kExamples].item<int64_t>();
  if (vectors_.one_lane()) return true;
  for (const torch::Tensor& vector : gradients_) comm::divide(vector, static_cast<double>(examples_));
  for (const torch::Tensor& vector : vectors_.buffers())
    comm::divide(vector, vectors_.numbers()[kLanes].item<double>());
  return true;
}

// Starts to push the gradients, which were computed from the values of step `of`.
void PsAsync::start_push(int64_t of) {
  copy(gradients_, going_.blocks);
  copy(results_, going_.extras);
  const double rate = replica_.optimizer().learning_rate();
  push_ = thread_.run([this, of, rate, examples = examples_] {
    name_thread(options_.timeline, "push and pull");
    const SpanScope span(options_.timeline, Activity::Reduce, "push and pull", now_);
    const torch::NoGradGuard no_grad;
    applied_ = client_.push_asynchronous({.gradients = going_.blocks,
                                          .results = going_.extras,
                                          .of = of,
                                          .examples = examples,
                                          .end = end_,
                                          .learning_rate = rate},
                                         coming_.blocks, coming_.extras);
  });
  under_way_ = true;
  pushed_examples_ = examples_;
  pushed_loss_ = vectors_.numbers()[kLoss].clone();
}

// Waits for the push and takes over the new values.
StepResult PsAsync::end_push() {
  if (!under_way_) return {.step = now_, .made = false, .examples = 0, .loss_sum = {}, .wishes = {}};
  under_way_ = false;
  {
    const SpanScope span(options_.timeline, Activity::Wait, "push and pull", now_);
    push_.wait();
  }
  for (size_t i = 0; i < coming_.blocks.size(); ++i) {
    const torch::Tensor values = replica_.parameters().blocks()[i].values;
    values.detach().copy_(coming_.blocks[i]);
  }
  copy(coming_.extras, {vectors_.buffers(), vectors_.counters()});
  vectors_.take_over_buffers();
  values_step_ = applied_.now;
  // Counts only this worker's own step; if there was no step left to make, takes the last one.
  now_ = applied_.made ? applied_.step + 1 : applied_.now;
  if (!applied_.made) return {.step = now_, .made = false, .examples = 0, .loss_sum = {}, .wishes = {}};
  return {.step = now_, .made = true, .examples = pushed_examples_, .loss_sum = pushed_loss_, .wishes = {}};
}

int64_t PsAsync::finish(int64_t step) {
  const torch::NoGradGuard no_grad;
  now_ = std::max(now_, step);
  return end_push().step;
}

}  // namespace tutti

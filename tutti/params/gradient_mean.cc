#include "tutti/params/gradient_mean.h"

#include <algorithm>

#include <torch/utils.h>

#include "tutti/base/check.h"
#include "tutti/base/error.h"
#include "tutti/comm/hosts.h"
#include "tutti/params/clip_norm.h"
#include "tutti/params/lane_vectors.h"

namespace tutti {
namespace {

// Returns the memory that the workers of this host share; nullptr if they share none, or if the vectors are
// on a device other than the CPU.
comm::SharedVectors* shared_by(comm::Communicator& comm, torch::Device device) {
  if (comm.world() == 1 || !device.is_cpu()) return nullptr;
  if (comm::SharedVectors* shared = comm.shared()) return shared;
  return comm.hosts() != nullptr ? comm.hosts()->inside.shared() : nullptr;
}

bool is_in(comm::SharedVectors& shared, const torch::Tensor& vector) {
  try {
    return !shared.everyones(vector).empty();
  } catch (const Error&) {
    return false;
  }
}

// Moves the parameters into shared memory, if there is any.
Parameters& ready_to_sum(Parameters& parameters, comm::Communicator& comm) {
  parameters.require_as_made();
  comm::SharedVectors* shared = shared_by(comm, parameters.device());
  if (shared != nullptr && !is_in(*shared, parameters.blocks().front().values))
    parameters.move(shared_allocator(comm, parameters.device()));
  return parameters;
}

std::vector<torch::Tensor> buffers_of(const Parameters& parameters) {
  std::vector<torch::Tensor> buffers(parameters.buffer_vectors().begin(), parameters.buffer_vectors().end());
  for (const torch::Tensor& counter : counters_of(parameters)) buffers.push_back(counter);
  return buffers;
}

Buckets summed(const Parameters& parameters, const std::vector<torch::Tensor>& exact) {
  Buckets buckets = buckets_of(parameters);
  std::copy(exact.begin(), exact.end(), buckets.vectors.end() - static_cast<int64_t>(exact.size()));
  return buckets;
}

Reducer::Divisor count_of(bool one_lane) {
  if (one_lane) return {};
  return [](const Bucket& bucket, const torch::Tensor& numbers) {
    return numbers[bucket.gradients ? kExamples : kLanes].item<double>();
  };
}

}  // namespace

GradientMean::GradientMean(Parameters& parameters, comm::Communicator& comm, int64_t lanes,
                           const ReducerOptions& options)
    : parameters_(ready_to_sum(parameters, comm)),
      comm_(comm),
      one_lane_(lanes == 1),
      scatter_(options.scatter && comm.world() > 1),
      buffers_(buffers_of(parameters)),
      exact_(exact_sums(parameters, one_lane_, shared_allocator(comm, parameters.device()))),
      numbers_(torch::zeros({kNumbers},
                            torch::TensorOptions().dtype(torch::kFloat64).device(parameters.device()))),
      reducer_(comm, summed(parameters, exact_), numbers_, lanes, count_of(one_lane_), options) {
  if (lanes > 1) {
    for (const torch::Tensor& buffer : buffers_) before_.push_back(torch::empty_like(buffer));
  }
  if (!reducer_.overlaps()) return;
  watch_.emplace(
      parameters, [this](size_t parameter) { before_gradient(parameter); },
      [this](size_t parameter) { on_gradient(parameter); });
}

void GradientMean::begin_step(int64_t step, const Wishes& wishes, double learning_rate) {
  parameters_.require_as_made();
  reducer_.begin(step, wishes, learning_rate);
  if (lane_begun_) restore_buffers();
  lane_begun_ = false;
  step_ = step;
}

void GradientMean::restore_buffers() {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < before_.size(); ++i) buffers_[i].copy_(before_[i]);
}

void GradientMean::begin_lane() {
  watching_ = false;  // resets the state after a backward pass that failed
  parameters_.zero_grads();
  if (lane_begun_) return restore_buffers();
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < before_.size(); ++i) before_[i].copy_(buffers_[i]);
  lane_begun_ = true;
}

void GradientMean::begin_backward(const torch::Tensor& loss, int64_t examples) {
  TUTTI_CHECK(examples > 0, "{} examples", examples);
  const torch::NoGradGuard no_grad;
  numbers_[kLoss].copy_(loss.detach().reshape({}).to(torch::kFloat64) * static_cast<double>(examples));
  numbers_[kExamples].fill_(examples);
  numbers_[kLanes].fill_(1);
  if (!watch_ || !reducer_.open()) return;
  heard_.assign(parameters_.trained().size(), false);
  missing_.assign(reducer_.buckets().all.size(), 0);
  for (const size_t bucket : reducer_.buckets().of_parameter) ++missing_[bucket];
  watching_ = true;
}

// Throws if the gradient is being sent, since it must not change then.
void GradientMean::before_gradient(size_t parameter) const {
  if (!is_sending() || (watching_ && !heard_[parameter])) return;
  const std::string& name = parameters_.trained()[parameter].name;
  if (watching_) {
    fail(ErrorKind::InvalidArgument,
         "the gradient of {} was computed twice in one lane: make one backward pass over the sum of the "
         "losses",
         name);
  }
  fail(ErrorKind::InvalidArgument,
       "a backward pass would change the gradient of {}, which is already being sent after the last lane of "
       "step {}: call step() first",
       name, step_);
}

void GradientMean::on_gradient(size_t parameter) {
  if (!watching_) return;
  heard_[parameter] = true;
  parameters_.collect_grad(parameter);
  const size_t bucket = reducer_.buckets().of_parameter[parameter];
  const torch::NoGradGuard no_grad;
  if (--missing_[bucket] == 0) reducer_.ready(bucket);
}

void GradientMean::add() {
  watching_ = false;
  parameters_.collect_grads();
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < exact_.size(); ++i) exact_[i].copy_(parameters_.buffer_vectors()[i]);
  reducer_.add();
}

void GradientMean::skip() { reducer_.skip(); }

GradientMean::Result GradientMean::finish() {
  const ReduceOutcome outcome = reducer_.finish();
  if (!outcome.any_data) return {.wishes = outcome.wishes};
  share_counters(outcome);
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < exact_.size(); ++i) parameters_.buffer_vectors()[i].copy_(exact_[i]);
  lane_begun_ = false;
  return {numbers_[kExamples].item<int64_t>(), numbers_[kLoss].clone(), outcome.wishes};
}

double GradientMean::clip_norm(double largest) {
  return scatter_ ? clip_norm_scattered(comm_, reducer_.buckets(), largest, step_)
                  : tutti::clip_norm(reducer_.buckets(), largest);
}

void GradientMean::share_update() {
  if (!scatter_) return;
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> values;
  for (const Stretch& block : parameters_.blocks()) values.push_back(block.values);
  reducer_.spread(values);
}

// The counters of a worker without data have not advanced, so they are broadcast from a worker that had data.
void GradientMean::share_counters(const ReduceOutcome& outcome) {
  if (outcome.data_everywhere) return;
  for (const torch::Tensor& counter : counters_of(parameters_))
    comm_.broadcast(counter, outcome.first_with_data, {.what = "a buffer"});
}

Allocate shared_allocator(comm::Communicator& comm, torch::Device device) {
  comm::SharedVectors* shared = shared_by(comm, device);
  if (shared == nullptr) return {};
  return [shared](int64_t elements, const torch::TensorOptions& options) {
    return shared->allocate(elements, options.dtype().toScalarType());
  };
}

void require_mean(const torch::Tensor& loss) {
  if (!loss.defined() || loss.numel() != 1) {
    fail(ErrorKind::InvalidArgument, "the loss is {}, expected a single number, the mean over the batch",
         loss.defined() ? describe(loss) : "nothing");
  }
  if (!loss.requires_grad()) {
    fail(ErrorKind::InvalidArgument, "the loss does not depend on any trained parameter");
  }
}

}  // namespace tutti

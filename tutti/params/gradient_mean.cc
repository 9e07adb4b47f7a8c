#include "tutti/params/gradient_mean.h"

#include <cmath>

#include <torch/utils.h>

#include "tutti/base/check.h"

namespace tutti {
namespace {

enum Number { kLoss, kExamples, kLanes, kNumbers };

// Those that are not of a floating type, such as a count of batches: nothing is added to them. They are those
// of the last lane, and the same after each, since every lane starts from what was there before the step.
std::vector<torch::Tensor> counters_of(const Parameters& parameters) {
  std::vector<torch::Tensor> counters;
  for (const auto& view : parameters.buffers()) {
    if (!view.tensor.is_floating_point()) counters.push_back(view.tensor);
  }
  return counters;
}

std::vector<torch::Tensor> buffers_of(const Parameters& parameters) {
  std::vector<torch::Tensor> buffers(parameters.buffer_vectors().begin(), parameters.buffer_vectors().end());
  for (const torch::Tensor& counter : counters_of(parameters)) buffers.push_back(counter);
  return buffers;
}

TreeSum::Vectors summed(const Parameters& parameters) {
  TreeSum::Vectors vectors;
  for (const auto& block : parameters.blocks()) vectors.push_back(block.grads);
  for (const torch::Tensor& vector : parameters.buffer_vectors()) vectors.push_back(vector);
  return vectors;
}

}  // namespace

GradientMean::GradientMean(Parameters& parameters, comm::Communicator& comm, int64_t lanes)
    : parameters_(parameters),
      comm_(comm),
      one_lane_(lanes == 1 && comm.world() == 1),
      buffers_(buffers_of(parameters)),
      numbers_(torch::zeros({kNumbers},
                            torch::TensorOptions().dtype(torch::kFloat64).device(parameters.device()))),
      reducer_(comm, summed(parameters), numbers_, lanes) {
  if (lanes == 1) return;
  for (const torch::Tensor& buffer : buffers_) before_.push_back(torch::empty_like(buffer));
}

void GradientMean::begin_lane() {
  parameters_.zero_grads();
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < before_.size(); ++i)
    first_lane_ ? before_[i].copy_(buffers_[i]) : buffers_[i].copy_(before_[i]);
  first_lane_ = false;
}

void GradientMean::add(const torch::Tensor& loss, int64_t examples) {
  TUTTI_CHECK(examples > 0, "{} examples", examples);
  const torch::NoGradGuard no_grad;
  numbers_[kLoss].copy_(loss.to(torch::kFloat64) * static_cast<double>(examples));
  numbers_[kExamples].fill_(examples);
  numbers_[kLanes].fill_(1);
  reducer_.add();
}

void GradientMean::skip() { reducer_.skip(); }

GradientMean::Result GradientMean::finish(int64_t step, int64_t stop) {
  first_lane_ = true;
  const size_t gradients = parameters_.blocks().size();
  const auto count = [gradients](size_t vector, const torch::Tensor& numbers) {
    return numbers[vector < gradients ? kExamples : kLanes].item<double>();
  };
  const Reducer::Outcome outcome = reducer_.finish(step, stop, one_lane_ ? Reducer::Divisor() : count);
  if (!outcome.any_data) return {.stop = outcome.stop};
  share_counters(outcome);
  const torch::NoGradGuard no_grad;
  return {numbers_[kExamples].item<int64_t>(), numbers_[kLoss].clone(), outcome.stop};
}

// A worker that had no data has not counted.
void GradientMean::share_counters(const Reducer::Outcome& outcome) {
  if (outcome.data_everywhere) return;
  for (const torch::Tensor& counter : counters_of(parameters_))
    comm_.broadcast(counter, outcome.first_with_data, {.what = "a buffer"});
}

Allocate shared_allocator(comm::Communicator& comm, torch::Device device) {
  comm::SharedVectors* shared = comm.world() > 1 && device.is_cpu() ? comm.shared() : nullptr;
  if (shared == nullptr) return {};
  return [shared](int64_t elements, const torch::TensorOptions& options) {
    return shared->allocate(elements, options.dtype().toScalarType());
  };
}

double clip_norm(Parameters& parameters, double largest) {
  const torch::NoGradGuard no_grad;
  double squares = 0;
  for (const auto& block : parameters.blocks()) {
    const double norm = block.grads.norm(2, torch::kFloat64).item<double>();
    squares += norm * norm;
  }
  const double norm = std::sqrt(squares);
  // The small number is what torch::nn::utils::clip_grad_norm_ adds, too.
  const double factor = largest / (norm + 1e-6);
  if (factor < 1) {
    for (const auto& block : parameters.blocks()) block.grads.mul_(factor);
  }
  return norm;
}

}  // namespace tutti

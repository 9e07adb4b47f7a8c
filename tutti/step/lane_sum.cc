#include "tutti/step/lane_sum.h"

#include <utility>

#include <torch/utils.h>

#include "tutti/base/check.h"
#include "tutti/step/buckets.h"

namespace tutti {
namespace {

std::vector<torch::Tensor> counters_of(const Parameters& parameters) {
  std::vector<torch::Tensor> counters;
  for (const auto& view : parameters.buffers()) {
    if (!view.tensor.is_floating_point()) counters.push_back(view.tensor);
  }
  return counters;
}

std::vector<torch::Tensor> exact_sums(const Parameters& parameters, bool one_lane, const Allocate& allocate) {
  std::vector<torch::Tensor> sums;
  for (const torch::Tensor& vector : parameters.buffer_vectors()) {
    const auto options = vector.options().dtype(torch::kFloat64);
    const bool as_it_is = one_lane || vector.scalar_type() == torch::kFloat64;
    sums.push_back(as_it_is   ? vector
                   : allocate ? allocate(vector.numel(), options)
                              : torch::zeros({vector.numel()}, options));
  }
  return sums;
}

std::vector<torch::Tensor> summed(std::vector<torch::Tensor> gradients, const LaneVectors& vectors) {
  gradients.insert(gradients.end(), vectors.buffers().begin(), vectors.buffers().end());
  gradients.push_back(vectors.numbers());
  return gradients;
}

}  // namespace

LaneVectors::LaneVectors(Parameters& parameters, int64_t lanes, const Allocate& allocate)
    : parameters_(parameters),
      one_lane_(lanes == 1),
      counters_(counters_of(parameters)),
      exact_(exact_sums(parameters, one_lane_, allocate)),
      current_(parameters.buffer_vectors().begin(), parameters.buffer_vectors().end()),
      numbers_(torch::zeros({kNumbers},
                            torch::TensorOptions().dtype(torch::kFloat64).device(parameters.device()))) {
  current_.insert(current_.end(), counters_.begin(), counters_.end());
  if (!one_lane_) keep_buffers();
}

void LaneVectors::keep_buffers() {
  if (!before_.empty()) return;
  for (const torch::Tensor& buffer : current_) before_.push_back(torch::empty_like(buffer));
}

void LaneVectors::begin_step() {
  parameters_.require_as_made();
  save_buffers();
  show_buffers();
}

void LaneVectors::save_buffers() {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < before_.size(); ++i) before_[i].copy_(current_[i]);
}

void LaneVectors::restore_buffers() {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < before_.size(); ++i) current_[i].copy_(before_[i]);
}

void LaneVectors::begin_lane() {
  parameters_.zero_grads();
  restore_buffers();
}

void LaneVectors::count(const torch::Tensor& loss, int64_t examples) {
  TUTTI_CHECK(examples > 0, "{} examples", examples);
  const torch::NoGradGuard no_grad;
  if (loss.defined())
    numbers_[kLoss].copy_(loss.detach().reshape({}).to(torch::kFloat64) * static_cast<double>(examples));
  else
    numbers_[kLoss].zero_();
  numbers_[kLanesWithoutLoss].fill_(loss.defined() ? 0 : 1);
  numbers_[kExamples].fill_(examples);
  numbers_[kLanes].fill_(1);
}

torch::Tensor LaneVectors::loss_sum() const {
  return numbers_[kLanesWithoutLoss].item<double>() > 0 ? torch::Tensor() : numbers_[kLoss].clone();
}

void LaneVectors::collect() {
  parameters_.collect_grads();
  show_buffers();
}

void LaneVectors::show_buffers() {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < exact_.size(); ++i) exact_[i].copy_(parameters_.buffer_vectors()[i]);
}

void LaneVectors::take_over_buffers() {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < exact_.size(); ++i) parameters_.buffer_vectors()[i].copy_(exact_[i]);
}

LocalSum::LocalSum(LaneVectors& vectors, std::vector<torch::Tensor> gradients, const LaneRange& leaves,
                   int64_t of)
    : vectors_(vectors),
      gradients_(gradients.size()),
      sum_(summed(std::move(gradients), vectors), leaves, of) {}

void LocalSum::begin_step() {
  sum_.reset();
  vectors_.begin_step();
}

void LocalSum::add() {
  vectors_.collect();
  sum_.add();
}

Gradients LocalSum::gradients_in(const std::vector<TreeSum::Subtree>& subtrees) const {
  for (const TreeSum::Subtree& subtree : subtrees) {
    if (!subtree.values) continue;
    for (size_t i = 0; i < gradients_; ++i) {
      if (!is_finite((*subtree.values)[i])) return Gradients::NotFinite;
    }
  }
  return Gradients::Finite;
}

std::vector<torch::Tensor> gradients_of(const Parameters& parameters) {
  std::vector<torch::Tensor> gradients;
  for (const Section& block : parameters.blocks()) gradients.push_back(block.grads);
  return gradients;
}

}  // namespace tutti

#include "tutti/params/lane_sum.h"

#include <utility>

#include <torch/utils.h>

namespace tutti {
namespace {

std::vector<torch::Tensor> summed(std::vector<torch::Tensor> gradients, const LaneVectors& vectors) {
  gradients.insert(gradients.end(), vectors.buffers().begin(), vectors.buffers().end());
  gradients.push_back(vectors.numbers());
  return gradients;
}

}  // namespace

LocalSum::LocalSum(LaneVectors& vectors, std::vector<torch::Tensor> gradients, const LaneRange& leaves,
                   int64_t of)
    : vectors_(vectors), sum_(summed(std::move(gradients), vectors), leaves, of) {}

void LocalSum::begin_step() {
  sum_.reset();
  vectors_.begin_step();
}

void LocalSum::add() {
  vectors_.collect();
  const torch::NoGradGuard no_grad;
  sum_.add();
}

std::vector<TreeSum::Subtree> LocalSum::finish() {
  const torch::NoGradGuard no_grad;
  return sum_.finish();
}

std::vector<torch::Tensor> gradients_of(const Parameters& parameters) {
  std::vector<torch::Tensor> gradients;
  for (const Stretch& block : parameters.blocks()) gradients.push_back(block.grads);
  return gradients;
}

}  // namespace tutti

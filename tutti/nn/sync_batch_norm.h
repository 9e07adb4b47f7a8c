#pragma once

#include <memory>
#include <ostream>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/options/batchnorm.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include "tutti/comm/uses_communicator.h"

namespace tutti::nn {

// torch::nn::BatchNorm1d, 2d and 3d in one, whose mean and variance in training are those over the examples
// of all workers: for batches too small to have good ones of their own. Parameters, buffers and options are
// those of torch::nn::BatchNorm, so that a checkpoint of one is one of the other. Input [N, C], [N, C, L],
// [N, C, H, W] or [N, C, D, H, W].
//
// Who trains the model gives it its communicator; until then, with one worker, and in evaluation mode it is
// torch::batch_norm. With several workers
// - the result depends on how many there are, however many lanes: the k-th lanes of all workers are
//   normalised together. With as many workers as lanes that is the whole global batch.
// - every worker calls forward in training mode, and backward, equally often and in the same order. One
//   without examples may do so with N = 0. Trainer leaves out lanes without examples, so that
//   --no-drop-remainder is an error where the last step of an epoch has such lanes.
// - the ranks have to be able to run at once: processes, or threads that hold no common lock.
//
// Statistics are made in float32 of half precision, else in the input's type, and are put together in float64
// in rank order: all workers have the same bits. The gradients of weight and bias are those of this worker's
// examples, which the optimiser adds up. There is no second derivative. Not thread-safe.
class SyncBatchNormImpl : public torch::nn::NormImplBase<0, SyncBatchNormImpl, torch::nn::BatchNormOptions>,
                          public comm::UsesCommunicator {
 public:
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& options) : NormImplBase(options) {}

  // InvalidArgument on all workers where they have fewer than two values a channel together.
  torch::Tensor forward(const torch::Tensor& input);

  void use(std::shared_ptr<comm::Communicator> group) override { group_ = std::move(group); }
  void pretty_print(std::ostream& stream) const override;

 private:
  void _check_input_dim(const torch::Tensor& input) override;
  double count_batch();
  torch::Tensor forward_together(const torch::Tensor& input, double momentum);

  std::shared_ptr<comm::Communicator> group_;
};

TORCH_MODULE(SyncBatchNorm);

}  // namespace tutti::nn

#pragma once

#include <memory>
#include <ostream>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/options/batchnorm.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include "tutti/comm/communicator.h"

namespace tutti::nn {

// torch::nn::BatchNorm1d, 2d and 3d in one class that in training computes mean and variance over the
// examples of all workers, because the batch of a single worker may be too small for good statistics. It has
// the same parameters, buffers and options as torch::nn::BatchNorm, and checkpoints are interchangeable.
// Input [N, C], [N, C, L], [N, C, H, W] or [N, C, D, H, W].
//
// The trainer or optimiser of the model sets its communicator; until then, with one worker, and in evaluation
// mode it computes torch::batch_norm. With several workers
// - the result depends on the number of workers, whatever the number of lanes: the k-th lanes of all workers
//   are normalised together. With one lane per worker that is the whole global batch.
// - every worker has to call forward in training mode, and backward, equally often and in the same order. A
//   worker without examples may call them with N = 0. Trainer skips lanes without examples, so
//   --no-drop-remainder is an error if the last step of an epoch has such lanes.
// - the ranks have to run concurrently: as processes, or as threads that hold no common lock.
//
// Statistics are computed in float32 for half-precision inputs, else in the input's type, and are merged in
// float64 in rank order, so all workers have the same bits. The gradients of weight and bias cover this
// worker's examples; the optimiser adds the gradients of all workers. There is no second derivative. Not
// thread-safe.
class SyncBatchNormImpl : public torch::nn::NormImplBase<0, SyncBatchNormImpl, torch::nn::BatchNormOptions>,
                          public comm::UsesCommunicator {
 public:
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& options) : NormImplBase(options) {}

  // Throws InvalidArgument on all workers if together they have fewer than two values per channel.
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

#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <utility>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include "tutti/data/batch.h"

namespace tutti {

// The result of a loss function: the mean over the batch's examples, and optionally the predictions, so that
// metrics of the training batches cost nothing extra. Can be constructed from the loss alone.
struct LossOutput {
  LossOutput(torch::Tensor mean_loss) : loss(std::move(mean_loss)) {}  // NOLINT(google-explicit-constructor)
  LossOutput(torch::Tensor mean_loss, torch::Tensor predictions)
      : loss(std::move(mean_loss)), prediction(std::move(predictions)) {}

  torch::Tensor loss;
  torch::Tensor prediction;  // may be undefined
};

class Script;

// A module together with its loss and prediction functions: everything that training needs of a model.
struct Trainable {
  std::shared_ptr<torch::nn::Module> module;
  std::function<LossOutput(const Batch&)> loss;
  std::function<torch::Tensor(const Batch&)> predict;  // may be empty
  // The same model as a program that can be sent to processes that do not have it (script.h); may be null.
  std::shared_ptr<const Script> script;
};

namespace internal {

template <class Net>
concept HasForward = requires(Net& net, const torch::Tensor& x) {
  { net.forward(x) } -> std::convertible_to<torch::Tensor>;
};

}  // namespace internal

// If Net has a forward(Tensor), it computes predictions from the first tensor of a batch.
template <class Net, class Loss>
Trainable make_trainable(std::shared_ptr<Net> net, Loss loss) {
  Trainable model;
  model.module = net;
  model.loss = [net, loss = std::move(loss)](const Batch& batch) -> LossOutput { return loss(*net, batch); };
  if constexpr (internal::HasForward<Net>) {
    model.predict = [net](const Batch& batch) -> torch::Tensor { return net->forward(batch.front()); };
  }
  return model;
}

template <class Net, class Loss>
Trainable make_trainable(const torch::nn::ModuleHolder<Net>& net, Loss loss) {
  return make_trainable(net.ptr(), std::move(loss));
}

}  // namespace tutti

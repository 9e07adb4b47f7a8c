#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include "tutti/base/error.h"
#include "tutti/data/batch.h"

namespace tutti {

// The result of a loss function: the mean over the batch's examples, and optionally the predictions, so that
// metrics of the training batches cost nothing extra, and an evaluation needs no second forward pass. Can
// be constructed from the loss alone.
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
  std::function<LossOutput(const Batch&)> loss;        // may be empty: the model cannot be trained
  std::function<torch::Tensor(const Batch&)> predict;  // may be empty
  // The same model as a program that can be sent to processes that do not have it (script.h); may be null.
  std::shared_ptr<const Script> script;
  // Says that a `predict` of the program makes the predictions that the loss function returns, so that an
  // evaluation need not call it.
  bool loss_predicts = false;
};

// Returns true if evaluations use the predictions that the loss function returns with the loss: unless the
// program has set `predict` and has not said that they are the same.
bool evaluates_by_loss(const Trainable& model);

// Options of make_trainable().
struct TrainableOptions {
  // The tensor of a batch that the net's forward(Tensor) makes predictions from. "": chosen as input_of()
  // says.
  std::string input = {};
};

// Returns the tensor of that name or, if `name` is empty, the one that a net with a single input most likely
// reads: "x", or "image", or the only tensor of a floating type, or else the only tensor, not counting labels
// ("y", "label", "labels", "target", "targets"). The order of the tensors does not matter. If several are
// possible, or none is, throws an InvalidArgument that lists the tensors of the batch.
const torch::Tensor& input_of(const Batch& batch, const std::string& name = {});

// Throws the InvalidArgument that the model has no function for predictions.
[[noreturn]] void fail_no_predictions();

namespace internal {

template <class Net>
concept HasForward = requires(Net& net, const torch::Tensor& x) {
  { net.forward(x) } -> std::convertible_to<torch::Tensor>;
};
template <class Net>
concept HasForwardOfBatch = requires(Net& net, const Batch& batch) {
  { net.forward(batch) } -> std::convertible_to<torch::Tensor>;
};

// The predictions of a module's own forward(). Has a type of its own, so that Trainable::predict tells
// whether a program has set another function.
struct ForwardPass {
  std::function<torch::Tensor(const Batch&)> call;
  torch::Tensor operator()(const Batch& batch) const { return call(batch); }
};

template <class Loss, class Net>
concept LossOf = requires(Loss& loss, Net& net, const Batch& batch) {
  { loss(net, batch) } -> std::convertible_to<LossOutput>;
};

// The module that a std::shared_ptr or a holder such as torch::nn::Sequential refers to.
template <class Module>
const std::shared_ptr<Module>& module_of_handle(const std::shared_ptr<Module>& module) {
  return module;
}
template <class Module>
const std::shared_ptr<Module>& module_of_handle(const torch::nn::ModuleHolder<Module>& holder) {
  return holder.ptr();
}

template <class Handle>
concept ModuleHandle = requires(const Handle& handle) {
  { module_of_handle(handle) } -> std::convertible_to<std::shared_ptr<torch::nn::Module>>;
};

template <class Handle, class Loss>
std::function<LossOutput(const Batch&)> bind_loss(const Handle& net, Loss loss) {
  using Net = std::remove_cvref_t<decltype(*module_of_handle(net))>;
  if constexpr (LossOf<Loss, Net>) {
    return [net = module_of_handle(net), loss = std::move(loss)](const Batch& batch) mutable -> LossOutput {
      return loss(*net, batch);
    };
  } else if constexpr (LossOf<Loss, Handle>) {
    return [net = Handle(net), loss = std::move(loss)](const Batch& batch) mutable -> LossOutput {
      return loss(net, batch);
    };
  } else {
    static_assert(
        LossOf<Loss, Net>,
        "the loss has to be a function loss(net, batch) of the net, or the module holder, and a const "
        "tutti::Batch&, which returns the mean loss as a torch::Tensor or {loss, predictions} as a "
        "tutti::LossOutput");
    return {};
  }
}

template <class Handle>
std::function<torch::Tensor(const Batch&)> bind_forward(const Handle& handle,
                                                        const TrainableOptions& options) {
  using Net = std::remove_cvref_t<decltype(*module_of_handle(handle))>;
  if constexpr (HasForward<Net>) {
    return ForwardPass{[net = module_of_handle(handle), input = options.input](const Batch& batch) {
      return torch::Tensor(net->forward(input_of(batch, input)));
    }};
  } else if constexpr (HasForwardOfBatch<Net>) {
    return ForwardPass{
        [net = module_of_handle(handle)](const Batch& batch) { return torch::Tensor(net->forward(batch)); }};
  } else {
    return {};
  }
}

}  // namespace internal

// `net` is a std::shared_ptr to a module, or a module holder. `loss(net, batch)` returns the mean loss over
// the batch, or {loss, predictions}; it takes the module, as in Net& or torch::nn::SequentialImpl&, or what
// was passed as `net`, as in torch::nn::Sequential&, by reference or const reference. If the module has a
// forward(Tensor) or a forward(const Batch&), it makes the predictions.
template <class Handle, class Loss>
Trainable make_trainable(const Handle& net, Loss loss, const TrainableOptions& options = {}) {
  if constexpr (internal::ModuleHandle<Handle>) {
    return {.module = internal::module_of_handle(net),
            .loss = internal::bind_loss(net, std::move(loss)),
            .predict = internal::bind_forward(net, options),
            .script = {}};
  } else {
    static_assert(internal::ModuleHandle<Handle>,
                  "the net has to be a std::shared_ptr to a torch::nn::Module, or a module holder such as "
                  "torch::nn::Sequential");
    return {};
  }
}

// A model that only predicts; to train it is an InvalidArgument.
template <internal::ModuleHandle Handle>
Trainable make_trainable(const Handle& net, const TrainableOptions& options = {}) {
  return {.module = internal::module_of_handle(net),
          .loss = {},
          .predict = internal::bind_forward(net, options),
          .script = {}};
}

}  // namespace tutti

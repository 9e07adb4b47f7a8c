#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include "tutti/data/source.h"

namespace tutti::nn {

// The input for which a layer is created.
struct PipeInput {
  int64_t columns = 0;  // number of input columns
  // Statistics of the columns if the input is the data itself, else empty. May have to read all data.
  std::function<data::TableStatistics()> statistics = {};
};

// A layer as created by a pipe: a function from rows to rows.
struct PipeLayer {
  std::string name;                           // "dense"; the modules are named dense1, ...
  std::shared_ptr<torch::nn::Module> module;  // its parameters and buffers; null if it has none
  std::function<torch::Tensor(const torch::Tensor&)> forward;
  int64_t columns = 0;  // number of output columns
};

// The layers of a pipe as one module, which applies them in order. Parameters are named after layer and
// number: "dense2.weight".
class PipeNetImpl : public torch::nn::Module {
 public:
  explicit PipeNetImpl(const std::vector<PipeLayer>& layers);

  torch::Tensor forward(torch::Tensor rows);
  int64_t columns() const { return columns_; }

 private:
  std::vector<std::function<torch::Tensor(const torch::Tensor&)>> layers_;
  int64_t columns_ = 0;
};
TORCH_MODULE(PipeNet);

namespace internal {

// Returns a new module of the same kind. A module of LibTorch gets new initial weights, any other is cloned.
template <class Module>
std::shared_ptr<Module> another(const Module& module) {
  if constexpr (requires { std::make_shared<Module>(module.options); }) {
    return std::make_shared<Module>(module.options);
  } else {
    return std::dynamic_pointer_cast<Module>(module.clone());
  }
}

}  // namespace internal

// A sequence of layers that is independent of the size of the input:
//   const Pipe pipe = WindowInput() | Dense(20, torch::tanh) | Dense(5, torch::tanh) | Dense(1);
//   PipeNet net = pipe.build(feed.statistics("desc"));
// A value type. Besides the layers below, a function of a tensor can be a layer if it
// keeps the number of columns, and so can a LibTorch module such as torch::nn::BatchNorm1d(20); each net gets
// a new copy of the module.
class Pipe {
 public:
  using Make = std::function<PipeLayer(const PipeInput&)>;

  explicit Pipe(Make layer) : layers_{std::move(layer)} {}

  // Creates all layers; the parameters are drawn from LibTorch's generator.
  PipeNet build(const data::TableStatistics& statistics) const;
  PipeNet build(PipeInput input) const;

  // Returns the layers of both, in this order.
  friend Pipe operator|(Pipe before, const Pipe& after);
  // Appends a function that is applied to the rows of a batch, such as torch::tanh.
  friend Pipe operator|(Pipe before, torch::Tensor (*function)(const torch::Tensor&));
  // Appends a copy of the module, which every net makes for itself.
  template <class Module>
  friend Pipe operator|(Pipe before, const torch::nn::ModuleHolder<Module>& module) {
    return std::move(before) | Pipe([module](const PipeInput& input) -> PipeLayer {
             const auto net = internal::another(*module);
             return {"layer", net, [net](const torch::Tensor& rows) { return net->forward(rows); },
                     input.columns};
           });
  }

 private:
  std::vector<Make> layers_;
};

using Activation = std::function<torch::Tensor(const torch::Tensor&)>;

// Rescales each column by its range over all the data: its minimum becomes -1, its maximum 1. A constant
// column becomes 0, and missing values become the column's mean. Has to be the first layer of a pipe.
struct WindowInput : Pipe {
  WindowInput();
};

// A fully connected layer with `columns` outputs, followed by the activation. Weights are initialised after
// Glorot and Bengio, biases with 0.
struct Dense : Pipe {
  explicit Dense(int64_t columns, Activation activation = {});
};

// In training sets each value to 0 with this probability, as torch::dropout does.
struct Dropout : Pipe {
  explicit Dropout(double probability);
};

}  // namespace tutti::nn

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

#include "tutti/data/statistics.h"

namespace tutti::nn {

// What a layer is made for.
struct PipeInput {
  int64_t columns = 0;  // that come in
  // Of the data, where they come from it as they are; else empty. May have to read all of it.
  std::function<data::TableStatistics()> statistics = {};
};

// A layer that was made: rows in, rows out.
struct PipeLayer {
  std::string name;                           // "dense"; the module's is dense1, ...
  std::shared_ptr<torch::nn::Module> module;  // its parameters and buffers; null where it has none
  std::function<torch::Tensor(const torch::Tensor&)> forward;
  int64_t columns = 0;  // that come out
};

// The layers of a pipe, as one module: layer by layer. Parameters are called by layer and number:
// "dense2.weight".
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

// With first weights of its own, where it is one of LibTorch's.
template <class Module>
std::shared_ptr<Module> another(const Module& module) {
  if constexpr (requires { std::make_shared<Module>(module.options); }) {
    return std::make_shared<Module>(module.options);
  } else {
    return std::dynamic_pointer_cast<Module>(module.clone());
  }
}

}  // namespace internal

// Layers in a row, before they know what comes in:
//   const Pipe pipe = WindowInput() | Dense(20, torch::tanh) | Dense(5, torch::tanh) | Dense(1);
//   PipeNet net = pipe.build(feed.statistics("desc"));
// A value. Besides those below, a function of a tensor is a layer that leaves the columns as they are, and so
// is a module of LibTorch's such as torch::nn::BatchNorm1d(20), of which each net gets a new one.
class Pipe {
 public:
  using Make = std::function<PipeLayer(const PipeInput&)>;

  explicit Pipe(Make layer) : layers_{std::move(layer)} {}

  // Makes all layers, with parameters from LibTorch's generator.
  PipeNet build(const data::TableStatistics& statistics) const;
  PipeNet build(PipeInput input) const;

  friend Pipe operator|(Pipe before, const Pipe& after);
  friend Pipe operator|(Pipe before, torch::Tensor (*function)(const torch::Tensor&));
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

// Rescales each column to its range over all the data: its least value becomes -1, its greatest 1. A column
// that never changes becomes 0, and what is missing becomes the column's mean. The first layer of a pipe.
struct WindowInput : Pipe {
  WindowInput();
};

// `columns` sums of all that comes in, weighted and shifted, and what the activation makes of them. Weights
// begin as Glorot and Bengio have it, shifts with 0.
struct Dense : Pipe {
  explicit Dense(int64_t columns, Activation activation = {});
};

// In training leaves out each number with this probability.
struct Dropout : Pipe {
  explicit Dropout(double probability);
};

}  // namespace tutti::nn

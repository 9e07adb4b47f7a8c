#include "tutti/nn/pipe.h"

#include <cmath>
#include <map>

#include <ATen/Functions.h>
#include <torch/nn/functional/dropout.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include "tutti/base/error.h"

namespace tutti::nn {
namespace {

// Returns x * scale + shift, or `filler` where x is missing. Scale, shift and filler are parameters that are
// not trained, so they are saved in checkpoints and no step changes them.
class Window : public torch::nn::Module {
 public:
  explicit Window(const data::TableStatistics& statistics) {
    std::vector<float> scale;
    std::vector<float> shift;
    std::vector<float> filler;
    for (size_t i = 0; i < statistics.columns.size(); ++i) {
      const data::ColumnStatistics& column = statistics.columns[i];
      if (column.count > 0 && !std::isfinite(column.max - column.min))
        fail(ErrorKind::InvalidArgument,
             "WindowInput cannot rescale column {}: its minimum is {} and its maximum {}", i + 1, column.min,
             column.max);
      const double range = column.count > 0 ? column.max - column.min : 0;
      const double factor = range > 0 ? 2 / range : 0;
      const double middle = column.count > 0 ? column.min + range / 2 : 0;
      scale.push_back(static_cast<float>(factor));
      shift.push_back(static_cast<float>(-middle * factor));
      filler.push_back(static_cast<float>((column.filler() - middle) * factor));
    }
    scale_ = register_parameter("scale", at::tensor(scale), false);
    shift_ = register_parameter("shift", at::tensor(shift), false);
    filler_ = register_parameter("filler", at::tensor(filler), false);
  }

  torch::Tensor forward(const torch::Tensor& rows) {
    return at::where(rows.isnan(), filler_, rows * scale_ + shift_);
  }

 private:
  torch::Tensor scale_;
  torch::Tensor shift_;
  torch::Tensor filler_;
};

}  // namespace

PipeNetImpl::PipeNetImpl(const std::vector<PipeLayer>& layers) {
  std::map<std::string, int> count;
  for (const PipeLayer& layer : layers) {
    if (layer.module) register_module(layer.name + std::to_string(++count[layer.name]), layer.module);
    layers_.push_back(layer.forward);
    columns_ = layer.columns;
  }
}

torch::Tensor PipeNetImpl::forward(torch::Tensor rows) {
  for (const auto& layer : layers_) rows = layer(rows);
  return rows;
}

PipeNet Pipe::build(const data::TableStatistics& statistics) const {
  return build(PipeInput{static_cast<int64_t>(statistics.columns.size()), [&] { return statistics; }});
}

PipeNet Pipe::build(PipeInput input) const {
  std::vector<PipeLayer> made;
  for (const Make& make : layers_) {
    made.push_back(make(input));
    input = {made.back().columns, {}};
  }
  return PipeNet(made);
}

Pipe operator|(Pipe before, const Pipe& after) {
  before.layers_.insert(before.layers_.end(), after.layers_.begin(), after.layers_.end());
  return before;
}

Pipe operator|(Pipe before, torch::Tensor (*function)(const torch::Tensor&)) {
  return std::move(before) | Pipe([function](const PipeInput& input) -> PipeLayer {
           return {"function", nullptr, function, input.columns};
         });
}

WindowInput::WindowInput()
    : Pipe([](const PipeInput& input) -> PipeLayer {
        if (!input.statistics)
          fail(ErrorKind::InvalidArgument,
               "WindowInput rescales the columns of the data, so it must be the first layer of a pipe that "
               "is built from their statistics");
        const auto window = std::make_shared<Window>(input.statistics());
        return {"window", window, [window](const torch::Tensor& rows) { return window->forward(rows); },
                input.columns};
      }) {}

Dense::Dense(int64_t columns, Activation activation)
    : Pipe([columns, activation = std::move(activation)](const PipeInput& input) -> PipeLayer {
        const torch::nn::Linear dense(input.columns, columns);
        torch::nn::init::xavier_uniform_(dense->weight);
        torch::nn::init::zeros_(dense->bias);
        return {"dense", dense.ptr(),
                [dense, activation](const torch::Tensor& rows) {
                  const torch::Tensor sums = dense.ptr()->forward(rows);
                  return activation ? activation(sums) : sums;
                },
                columns};
      }) {
  if (columns < 1) fail(ErrorKind::InvalidArgument, "Dense({}): a layer needs at least one column", columns);
}

Dropout::Dropout(double probability)
    : Pipe([probability](const PipeInput& input) -> PipeLayer {
        const torch::nn::Dropout dropout(probability);
        return {"dropout", dropout.ptr(),
                [net = dropout.ptr()](const torch::Tensor& rows) { return net->forward(rows); },
                input.columns};
      }) {
  if (!(probability >= 0 && probability < 1))
    fail(ErrorKind::InvalidArgument, "Dropout({}): the probability must be at least 0 and less than 1",
         probability);
}

}  // namespace tutti::nn

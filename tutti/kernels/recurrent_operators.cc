// Layers of LSTM cells. LibTorch makes one of many operators for each step, whose gradients autograd adds up
// step by step. Here the gradients of the weights are one product over all steps. The outputs have the bits
// of LibTorch's composition.
//
// | operators  | types         | layouts     |
// |------------|---------------|-------------|
// | lstm.input | float, double | all strides |
//
// LibTorch composes the others of operators of this module: other types, autocast, layers with projections,
// packed sequences (lstm.data), wrong shapes, and derivatives of derivatives.
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/lstm_native.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tutti/kernels/operators.h"
#include "tutti/kernels/parallel.h"
#include "tutti/kernels/recurrent.h"

namespace tutti::kernels {
namespace {

using torch::autograd::variable_list;

constexpr int64_t kCostOfCell = 128;  // of one step, in elementary operations

// The operands of one layer in one direction. The input has one row for each step and sequence.
struct LstmLayer {
  at::Tensor input;  // steps x sequences x elements
  at::Tensor hidden;
  at::Tensor cells;
  at::Tensor input_weight;
  at::Tensor hidden_weight;
  at::Tensor input_bias;  // zeros in a layer without biases
  at::Tensor hidden_bias;
};

// The outputs of a layer, and what its gradients are made of.
struct LstmSteps {
  at::Tensor hidden;  // after each step
  at::Tensor cells;
  at::Tensor tanh_cells;
  at::Tensor gates;
};

at::Tensor rows_of(const at::Tensor& steps) { return steps.reshape({-1, steps.size(-1)}); }

template <class T>
T* step_of(const at::Tensor& steps, int64_t step) {
  return steps.data_ptr<T>() + step * steps.stride(0);
}

template <class T>
void compute_steps(const LstmLayer& layer, const LstmSteps& to) {
  const at::Tensor from_input =
      at::addmm(layer.input_bias, rows_of(layer.input), layer.input_weight.t()).view(to.gates.sizes());
  const at::Tensor weight = layer.hidden_weight.t().contiguous();
  const at::Tensor first_cells = layer.cells.contiguous();
  for (int64_t s = 0; s < to.hidden.size(0); ++s) {
    const at::Tensor before = s == 0 ? layer.hidden : to.hidden.select(0, s - 1);
    const at::Tensor from_hidden = at::addmm(layer.hidden_bias, before, weight);
    const LstmStep<T> step{step_of<T>(from_input, s),
                           from_hidden.data_ptr<T>(),
                           s == 0 ? first_cells.data_ptr<T>() : step_of<T>(to.cells, s - 1),
                           step_of<T>(to.gates, s),
                           step_of<T>(to.cells, s),
                           step_of<T>(to.tanh_cells, s),
                           step_of<T>(to.hidden, s),
                           to.hidden.size(2)};
    in_parallel(to.hidden.size(1), kCostOfCell * step.width,
                [&](int64_t first, int64_t last) { step_lstm(step, first, last); });
  }
}

LstmSteps forward_of(const LstmLayer& layer) {
  const int64_t steps = layer.input.size(0);
  const int64_t sequences = layer.input.size(1);
  const int64_t width = layer.hidden.size(1);
  const auto empty = [&](int64_t elements) {
    return at::empty({steps, sequences, elements}, layer.input.options());
  };
  const LstmSteps to{empty(width), empty(width), empty(width), empty(4 * width)};
  if (layer.input.scalar_type() == at::kFloat)
    compute_steps<float>(layer, to);
  else
    compute_steps<double>(layer, to);
  return to;
}

// Fills in the gradients of gates, from the last step to the first one, and returns the gradients of the
// hidden state and of the cells before the first step.
template <class T>
std::pair<at::Tensor, at::Tensor> differentiate_steps(const LstmLayer& layer, const LstmSteps& of,
                                                      const variable_list& gradients,
                                                      const at::Tensor& gates_gradient) {
  const int64_t steps = of.hidden.size(0);
  const at::Tensor first_cells = layer.cells.contiguous();
  const at::Tensor cell_gradient = gradients[2].clone(at::MemoryFormat::Contiguous);
  at::Tensor hidden_gradient = at::add(gradients[0].select(0, steps - 1), gradients[1]).contiguous();
  for (int64_t s = steps - 1; s >= 0; --s) {
    const LstmStepBackward<T> step{hidden_gradient.data_ptr<T>(),
                                   s == 0 ? first_cells.data_ptr<T>() : step_of<T>(of.cells, s - 1),
                                   step_of<T>(of.gates, s),
                                   step_of<T>(of.tanh_cells, s),
                                   cell_gradient.data_ptr<T>(),
                                   step_of<T>(gates_gradient, s),
                                   of.hidden.size(2)};
    in_parallel(of.hidden.size(1), kCostOfCell * step.width,
                [&](int64_t first, int64_t last) { differentiate_lstm(step, first, last); });
    const at::Tensor gates = gates_gradient.select(0, s);
    hidden_gradient = s == 0 ? at::mm(gates, layer.hidden_weight)
                             : at::addmm(gradients[0].select(0, s - 1), gates, layer.hidden_weight);
  }
  return {hidden_gradient, cell_gradient};
}

// Returns the gradients in the order of the members of LstmLayer.
variable_list backward_of(const LstmLayer& layer, const LstmSteps& of, const variable_list& gradients,
                          bool is_input_differentiated) {
  const at::Tensor gates = at::empty_like(of.gates);
  const auto [hidden, cells] = layer.input.scalar_type() == at::kFloat
                                   ? differentiate_steps<float>(layer, of, gradients, gates)
                                   : differentiate_steps<double>(layer, of, gradients, gates);
  const int64_t steps = gates.size(0);
  const at::Tensor all = rows_of(gates);
  at::Tensor hidden_weight = at::mm(gates.select(0, 0).t(), layer.hidden);
  if (steps > 1) {
    hidden_weight = at::addmm(hidden_weight, rows_of(gates.narrow(0, 1, steps - 1)).t(),
                              rows_of(of.hidden.narrow(0, 0, steps - 1)));
  }
  at::Tensor input;
  if (is_input_differentiated) input = at::mm(all, layer.input_weight).view(layer.input.sizes());
  const at::Tensor bias = all.sum(0);
  return {input, hidden, cells, at::mm(all.t(), rows_of(layer.input)), hidden_weight, bias, bias};
}

// Returns the same gradients, made of operators that can be differentiated again.
variable_list differentiable_backward_of(const LstmLayer& layer, const variable_list& gradients) {
  const auto [output, hidden, cells] =
      at::native::lstm(layer.input, {layer.hidden.unsqueeze(0), layer.cells.unsqueeze(0)},
                       {layer.input_weight, layer.hidden_weight, layer.input_bias, layer.hidden_bias}, true,
                       1, 0, true, false, false);
  variable_list all = {layer.input,         layer.hidden,     layer.cells,      layer.input_weight,
                       layer.hidden_weight, layer.input_bias, layer.hidden_bias};
  variable_list differentiated;
  for (const at::Tensor& each : all)
    if (each.requires_grad()) differentiated.push_back(each);
  const variable_list found =
      torch::autograd::grad({output, hidden.squeeze(0), cells.squeeze(0)}, differentiated, gradients, true,
                            /*create_graph=*/true, /*allow_unused=*/true);
  size_t next = 0;
  for (at::Tensor& each : all) each = each.requires_grad() ? found[next++] : at::Tensor();
  return all;
}

// The node of autograd's graph. It returns the outputs of the layer at all steps, and the hidden state and
// the cells after the last step.
struct LstmNode : torch::autograd::Function<LstmNode> {
  static variable_list forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                               const at::Tensor& hidden, const at::Tensor& cells,
                               const at::Tensor& input_weight, const at::Tensor& hidden_weight,
                               const at::Tensor& input_bias, const at::Tensor& hidden_bias) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const LstmLayer layer{input, hidden, cells, input_weight, hidden_weight, input_bias, hidden_bias};
    const LstmSteps steps = forward_of(layer);
    context->saved_data["is_input_differentiated"] = input.requires_grad();
    context->save_for_backward({input, hidden, cells, input_weight, hidden_weight, input_bias, hidden_bias,
                                steps.hidden, steps.cells, steps.tanh_cells, steps.gates});
    const int64_t last = input.size(0) - 1;
    return {steps.hidden, steps.hidden.select(0, last).clone(), steps.cells.select(0, last).clone()};
  }

  static variable_list backward(torch::autograd::AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const LstmLayer layer{saved[0], saved[1], saved[2], saved[3], saved[4], saved[5], saved[6]};
    if (at::GradMode::is_enabled()) return differentiable_backward_of(layer, gradients);
    return backward_of(layer, {saved[7], saved[8], saved[9], saved[10]}, gradients,
                       context->saved_data["is_input_differentiated"].toBool());
  }
};

// Returns true if all operands are those of an LSTM without projections.
bool is_our_lstm(const at::Tensor& input, at::TensorList hx, at::TensorList params, int64_t parameters,
                 int64_t layers, int64_t directions) {
  if (hx.size() != 2 || input.dim() != 3 || input.numel() == 0 || hx[0].dim() != 3 ||
      static_cast<int64_t>(params.size()) != layers * directions * parameters)
    return false;
  const at::ScalarType type = input.scalar_type();
  if (type != at::kFloat && type != at::kDouble) return false;
  if (!c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutocastCPU)) return false;
  const auto fits = [&](const at::Tensor& tensor, at::IntArrayRef sizes) {
    return tensor.layout() == at::kStrided && tensor.device().is_cpu() && tensor.scalar_type() == type &&
           tensor.sizes() == sizes;
  };
  const int64_t width = hx[0].size(2);
  const std::vector<int64_t> states = {layers * directions, input.size(1), width};
  if (width == 0 || !fits(input, input.sizes()) || !fits(hx[0], states) || !fits(hx[1], states)) return false;
  for (int64_t i = 0; i < layers * directions; ++i) {
    const int64_t in = i < directions ? input.size(2) : directions * width;
    const auto* const of = &params[static_cast<size_t>(i * parameters)];
    if (!fits(of[0], {4 * width, in}) || !fits(of[1], {4 * width, width})) return false;
    if (parameters == 4 && (!fits(of[2], {4 * width}) || !fits(of[3], {4 * width}))) return false;
  }
  return true;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm(const at::Tensor& input, at::TensorList hx,
                                                    at::TensorList params, bool has_biases,
                                                    int64_t num_layers, double dropout, bool train,
                                                    bool bidirectional, bool batch_first) {
  const int64_t directions = bidirectional ? 2 : 1;
  const int64_t parameters = has_biases ? 4 : 2;
  const at::Tensor by_steps = batch_first && input.dim() == 3 ? input.transpose(0, 1) : input;
  if (!is_our_lstm(by_steps, hx, params, parameters, num_layers, directions)) {
    return at::native::lstm(input, hx, params, has_biases, num_layers, dropout, train, bidirectional,
                            batch_first);
  }
  at::Tensor output = by_steps;
  std::vector<at::Tensor> hidden;
  std::vector<at::Tensor> cells;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    std::vector<at::Tensor> outputs;
    for (int64_t i = layer * directions; i < (layer + 1) * directions; ++i) {
      const auto parameter = [&](int64_t index) {
        return index < parameters ? params[static_cast<size_t>(i * parameters + index)]
                                  : at::zeros({4 * hx[0].size(2)}, input.options());
      };
      const bool is_backward = i % directions == 1;
      const variable_list results =
          LstmNode::apply(is_backward ? output.flip(0) : output, hx[0].select(0, i), hx[1].select(0, i),
                          parameter(0), parameter(1), parameter(2), parameter(3));
      outputs.push_back(is_backward ? results[0].flip(0) : results[0]);
      hidden.push_back(results[1]);
      cells.push_back(results[2]);
    }
    output = bidirectional ? at::cat(outputs, 2) : outputs[0];
    if (dropout != 0 && train && layer + 1 < num_layers) output = at::dropout(output, dropout, true);
  }
  if (batch_first) output = output.transpose(0, 1);
  return {output, at::stack(hidden), at::stack(cells)};
}

}  // namespace

void register_recurrent(Registrar& library) { library.impl_with_gradients("lstm.input", lstm); }

}  // namespace tutti::kernels

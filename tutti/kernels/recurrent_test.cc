// Recurrent layers are made of the operators of this module.
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/base/torch_compat.h"
#include "tutti/kernels/same_kernels.h"
#include "tutti/kernels/test_targets.h"

namespace tutti::kernels::recurrent_test {
namespace {

// The names of the operators that this thread has called while it lives, also those below autograd.
class Called {
 public:
  Called() {
    names().clear();
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(
        [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
          names().insert(function.name());
          return nullptr;
        }));
  }
  ~Called() { at::removeCallback(handle_); }
  Called(const Called&) = delete;
  Called& operator=(const Called&) = delete;

  bool has(const std::string& part) const {
    for (const std::string& name : names())
      if (name.find(part) != std::string::npos) return true;
    return false;
  }

 private:
  static std::set<std::string>& names() {
    thread_local std::set<std::string> all;
    return all;
  }
  at::CallbackHandle handle_;
};

using Compute = std::function<at::Tensor(at::ScalarType)>;

// Draws parameters and an input. Returns a function that computes the output and the gradients.
template <class Layer>
Compute drawn(Layer layer) {
  torch::manual_seed(5);
  for (at::Tensor& parameter : layer->parameters()) {
    const torch::NoGradGuard none;
    parameter.uniform_(-0.2, 0.2);
  }
  return [layer, input = torch::randn({7, 5, 33})](at::ScalarType type) mutable {
    const at::Tensor x = input.to(type, /*non_blocking=*/false, /*copy=*/true).requires_grad_();
    layer->to(type);
    layer->zero_grad();
    const at::Tensor output = std::get<0>(layer->forward(x));
    output.pow(2).sum().backward();
    std::vector<at::Tensor> all = {output.detach().flatten(), x.grad().flatten()};
    for (const at::Tensor& parameter : layer->parameters()) all.push_back(parameter.grad().flatten());
    return torch::cat(all);
  };
}

std::vector<std::pair<std::string, Compute>> layers() {
  using namespace torch::nn;
  return {{"LSTM", drawn(LSTM(LSTMOptions(33, 40).num_layers(2)))},
          {"LSTM in both directions", drawn(LSTM(LSTMOptions(33, 21).bidirectional(true).batch_first(true)))},
          {"LSTM without biases", drawn(LSTM(LSTMOptions(33, 40).num_layers(2).bias(false)))},
          {"GRU", drawn(GRU(GRUOptions(33, 40).num_layers(2)))},
          {"RNN", drawn(RNN(RNNOptions(33, 40)))}};
}

TEST(RecurrentLayers, have_the_same_bits_on_every_target_and_with_any_threads) {
  const SameKernels same;
  for (const auto& [name, compute] : layers()) {
    SCOPED_TRACE(name);
    computed_everywhere([&, &compute = compute] { return compute(at::kFloat); });
  }
}

TEST(RecurrentLayers, agree_with_libtorch) {
  for (const auto& [name, compute] : layers()) {    // drawn once for both
    const at::Tensor exact = compute(at::kDouble);  // of LibTorch's kernels
    const SameKernels same;
    const at::Tensor ours = compute(at::kFloat).to(at::kDouble);
    EXPECT_LT(((ours - exact).abs() / (exact.abs() + 1)).max().item<double>(), 1e-5) << name;
  }
}

// LibTorch composes layers of other operators if sequences are packed.
TEST(RecurrentLayers, of_lstm_give_the_outputs_of_libtorchs_composition) {
  const SameKernels same;
  torch::manual_seed(6);
  torch::nn::LSTM layer(torch::nn::LSTMOptions(33, 21).num_layers(2).bidirectional(true));
  const at::Tensor x = torch::randn({7, 5, 33});
  const auto packed =
      torch::nn::utils::rnn::pack_padded_sequence(x, torch::full({5}, 7, at::kLong), false, true);
  const auto [output, state] = layer->forward(x);
  const auto [composed, composed_state] = layer->forward_with_packed_input(packed);
  EXPECT_TRUE(same_bits(output, std::get<0>(torch::nn::utils::rnn::pad_packed_sequence(composed))));
  EXPECT_TRUE(same_bits(std::get<0>(state), std::get<0>(composed_state)));
  EXPECT_TRUE(same_bits(std::get<1>(state), std::get<1>(composed_state)));
  const c10::InferenceMode inference;
  EXPECT_TRUE(same_bits(output, std::get<0>(layer->forward(x))));
}

// A loss that depends on the outputs, the last states and the gradient of the input.
TEST(RecurrentLayers, of_lstm_can_be_differentiated_twice) {
  const auto gradients = [] {
    torch::manual_seed(7);
    torch::nn::LSTM layer(torch::nn::LSTMOptions(3, 4).num_layers(2));
    layer->to(at::kDouble);
    const at::Tensor x = torch::linspace(-1, 1, 5 * 2 * 3, at::kDouble).view({5, 2, 3}).requires_grad_();
    for (at::Tensor& parameter : layer->parameters()) {
      const torch::NoGradGuard none;
      parameter.copy_(torch::linspace(-1, 1, parameter.numel(), at::kDouble).view_as(parameter));
    }
    const auto [output, state] = layer->forward(x);
    const at::Tensor loss = output.pow(2).sum() + std::get<0>(state).sum() + std::get<1>(state).pow(3).sum();
    const at::Tensor first = torch::autograd::grad({loss}, {x}, {}, true, true)[0];
    first.pow(2).sum().backward();
    std::vector<at::Tensor> all = {first.detach().flatten(), x.grad().flatten()};
    for (const at::Tensor& parameter : layer->parameters())
      if (parameter.grad().defined()) all.push_back(parameter.grad().flatten());
    return torch::cat(all);
  };
  const at::Tensor theirs = gradients();
  const SameKernels same;
  EXPECT_TRUE(torch::allclose(gradients(), theirs, 1e-9, 1e-11));
}

TEST(RecurrentLayers, of_lstm_take_part_in_autocast) {
  const SameKernels same;
  torch::nn::LSTM layer(torch::nn::LSTMOptions(3, 4));
  const at::Tensor x = torch::randn({5, 2, 3});
  const at::Tensor exact = std::get<0>(layer->forward(x));
  const compat::AutocastScope scope(at::kCPU, at::kBFloat16);
  const at::Tensor rounded = std::get<0>(layer->forward(x)).to(at::kFloat);
  EXPECT_FALSE(torch::equal(rounded, exact));
  EXPECT_TRUE(torch::allclose(rounded, exact, 0, 0.02));
}

TEST(RecurrentLayers, of_lstm_refuse_gradients_after_their_output_was_changed) {
  const SameKernels same;
  torch::nn::LSTM layer(torch::nn::LSTMOptions(3, 4));
  const at::Tensor output = std::get<0>(layer->forward(torch::randn({5, 2, 3})));
  output.mul_(2);
  EXPECT_THROW(output.sum().backward(), c10::Error);
}

TEST(RecurrentLayers, and_convolutions_call_no_kernel_of_onednn) {
  const bool before = at::globalContext().userEnabledMkldnn();
  {
    const SameKernels same;
    const Called called;
    for (const auto& [name, compute] : layers()) compute(at::kFloat);
    torch::nn::Conv2d convolution(torch::nn::Conv2dOptions(16, 32, 3));
    const at::Tensor x = torch::randn({8, 16, 20, 20}).requires_grad_();
    convolution->forward(x).sum().backward();
    EXPECT_TRUE(called.has("addmm"));
    EXPECT_TRUE(called.has("convolution_backward"));
    EXPECT_FALSE(called.has("mkldnn"));
  }
  EXPECT_EQ(at::globalContext().userEnabledMkldnn(), before);
}

}  // namespace
}  // namespace tutti::kernels::recurrent_test

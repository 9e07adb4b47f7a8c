// Predicts digits with the weights of example 01, without the program that trained them. See README.md in
// this folder.
#include <numeric>
#include <tutti/tutti.h>

#include <torch/torch.h>

#include "examples/common/digits.h"

namespace nn = torch::nn;
using torch::max_pool2d;
using torch::relu;

struct Net : nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    x = (x - 0.1307) / 0.3081;  // mean and deviation of MNIST's pixels
    x = max_pool2d(relu(conv1(x)), 2);
    x = max_pool2d(relu(conv2(x)), 2);
    return pred(relu(dense(x.flatten(1))));
  }
  nn::Conv2d conv1 = register_module("conv1", nn::Conv2d(nn::Conv2dOptions(1, 32, 5).padding(2)));
  nn::Conv2d conv2 = register_module("conv2", nn::Conv2d(nn::Conv2dOptions(32, 64, 5).padding(2)));
  nn::Linear dense = register_module("dense", nn::Linear(7 * 7 * 64, 500));
  nn::Linear pred = register_module("pred", nn::Linear(500, 10));
};

int main(int argc, char** argv) {
  tutti::Program program;
  program.about = "Predicts the test digits of MNIST, or drawn digits if --data is empty.";
  std::string weights;
  program.add_flags = [&](tutti::FlagSet& flags) {
    flags.add_positional(
        "WEIGHTS", weights,
        "a log directory, a checkpoint, or a file of tensors (.safetensors, or .pt of torch.save())");
  };

  return tutti::run(argc, argv, program, [&](tutti::Context& ctx) {
    const auto digits = example::digits(ctx.config().data.path);
    const auto model = std::make_shared<Net>();
    tutti::load_weights(*model, weights);
    const torch::Tensor predictions = tutti::predict(tutti::make_trainable(model), digits.test());
    for (int64_t i = 0; i < 10; ++i) fmt::print("{} ", predictions[i].argmax().item<int64_t>());

    const tutti::metrics::MetricPtr accuracy = tutti::metrics::accuracy("label");
    std::vector<int64_t> all(static_cast<size_t>(digits.test().size()));
    std::iota(all.begin(), all.end(), 0);
    accuracy->update(predictions, digits.test().read(all));
    fmt::print("... test accuracy {:.4f}\n", *accuracy->value());
  });
}

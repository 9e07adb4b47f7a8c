// Reads an exported model with LibTorch alone: reader FOLDER. The digits' network is computed a second time
// from the tensors of the model by their names, in ordinary C++.
#include <iostream>
#include <map>

#include <torch/script.h>
#include <torch/torch.h>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const torch::NoGradGuard no_grad;
  torch::jit::Module model = torch::jit::load(std::string(argv[1]) + "/model.pt");
  model.eval();
  std::map<std::string, torch::Tensor> weights;
  for (const auto& parameter : model.named_parameters()) weights[parameter.name] = parameter.value;
  const auto convolution = [&](const torch::Tensor& x, const std::string& name) {
    const torch::Tensor y = torch::conv2d(x, weights.at(name + ".weight"), weights.at(name + ".bias"), 1, 2);
    return torch::max_pool2d(torch::relu(y), 2);
  };
  const auto dense = [&](const torch::Tensor& x, const std::string& name) {
    return torch::linear(x, weights.at(name + ".weight"), weights.at(name + ".bias"));
  };
  for (const int64_t examples : {1, 2, 50, 333}) {
    const torch::Tensor images = torch::rand({examples, 1, 28, 28});
    torch::Tensor x = convolution(convolution((images - 0.1307) / 0.3081, "conv1"), "conv2");
    x = dense(torch::relu(dense(x.flatten(1), "dense")), "pred");
    const torch::Tensor predictions = model.forward({images}).toTensor();
    if (predictions.sizes() != x.sizes() || !predictions.allclose(x, 1e-4, 1e-5)) {
      std::cerr << "the predictions for " << examples << " images are others\n";
      return 1;
    }
  }
  std::cout << "read " << weights.size() << " tensors\n";
}

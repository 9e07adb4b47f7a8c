// The program of same_bits_test: the training of tests/python/twin_program.py in C++.
#include <memory>
#include <tutti/tutti.h>

#include <torch/torch.h>

namespace twin_program {
namespace {

struct Net : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return head(body->forward(x)); }

  torch::nn::Sequential body =
      register_module("body", torch::nn::Sequential(torch::nn::Linear(6, 16), torch::nn::BatchNorm1d(16),
                                                    torch::nn::ReLU(), torch::nn::Dropout(0.25)));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(16, 1));
};

// 102 examples of numbers that are exact in float32.
tutti::data::Feed examples() {
  const torch::Tensor i = torch::arange(102).unsqueeze(1);
  const torch::Tensor x = (i * 7 + torch::arange(6) * 13).remainder(32).to(torch::kFloat32) / 16 - 1;
  const torch::Tensor y = (i * 5).remainder(17).to(torch::kFloat32) / 8 - 1;
  return tutti::data::Feed(tutti::data::from_tensors({{"x", x}, {"y", y}})).shuffle();
}

}  // namespace

int main(int argc, char** argv) {
  tutti::Program program;
  program.about = "Trains what tests/python/twin_program.py trains, for same_bits_test.";
  std::string weights;
  program.add_flags = [&](tutti::FlagSet& flags) {
    flags.add("--weights", weights, "a checkpoint whose weights the model begins with");
    flags.scope(tutti::FlagScope::Local, {"--weights"});
  };
  return tutti::run(argc, argv, program, [&](tutti::Context& ctx) {
    const auto net = std::make_shared<Net>();
    tutti::load_weights(*net, weights);
    const auto loss = [](Net& model, const tutti::Batch& batch) -> tutti::LossOutput {
      return {torch::mse_loss(model.forward(batch["x"]), batch["y"]), {}};
    };
    tutti::Trainer trainer(ctx, tutti::make_trainable(net, loss),
                           torch::optim::SGDOptions(0.05).momentum(0.9).nesterov(true));
    trainer.fit(examples());
  });
}

}  // namespace twin_program

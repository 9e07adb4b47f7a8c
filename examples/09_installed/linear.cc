// A program outside of Tutti's sources: fits a linear model to a plane, and prints the hash of its weights.
// See README.md in this folder.
#include <cstdio>
#include <tutti/tutti.h>

#include <torch/nn/modules/linear.h>

int main(int argc, char** argv) {
  tutti::Program program;
  program.about = "Fits a linear model.";
  program.defaults.training.steps = 100;
  program.defaults.training.batch = 8;
  return tutti::run(argc, argv, program, [](tutti::Context& ctx) {
    const auto x = torch::arange(512.0).reshape({256, 2}).sin();
    const auto y = x.matmul(torch::tensor({{2.0F}, {-3.0F}})) + 1;
    const tutti::data::Feed feed(tutti::data::from_tensors({{"x", x}, {"y", y}}));

    const auto net = std::make_shared<torch::nn::LinearImpl>(2, 1);
    tutti::Trainer trainer(ctx, net, torch::optim::AdamOptions(0.1),
                           [](torch::nn::LinearImpl& linear, const tutti::Batch& batch) {
                             return torch::mse_loss(linear.forward(batch["x"]), batch["y"]);
                           });
    trainer.fit(feed.shuffle());
    if (ctx.is_chief()) std::printf("weights %s\n", trainer.report().weights_sha256.c_str());
  });
}

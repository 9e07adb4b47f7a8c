// Trains a convolutional network on handwritten digits. See README.md in this folder.
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
  program.about = "Trains a convolutional network on MNIST, or on drawn digits if --data is empty.";
  program.defaults.training.batch = 50;
  program.defaults.training.steps = 5000;
  double rate = 1e-4;
  int64_t decay_steps = 0;
  int64_t test_every = 0;
  program.add_flags = [&](tutti::FlagSet& flags) {
    tutti::add_learning_rate(flags, rate);
    flags.add("--decay-steps", decay_steps,
              "steps until the rate is 0; the rate falls during the last 30 % of them; 0: constant rate");
    flags.between("--decay-steps", 0, 1e12);
    flags.add("--test-every", test_every,
              "steps between lines with the accuracy on the test digits, from step 0 on; 0: only at the end");
    flags.between("--test-every", 0, 1e12);
    flags.scope(tutti::FlagScope::Job, {"--test-every"});
  };

  return tutti::run(argc, argv, program, [&](tutti::Context& ctx) {
    const auto digits = example::digits(ctx.config().data.path);
    const auto net = std::make_shared<Net>();
    const auto schedule = decay_steps > 0 ? tutti::schedules::decay(rate, decay_steps * 7 / 10, decay_steps)
                                          : tutti::schedules::constant(rate);
    tutti::Trainer trainer(ctx, net, torch::optim::AdamOptions(rate),
                           [](Net& n, const tutti::Batch& batch) -> tutti::LossOutput {
                             const auto prediction = n.forward(batch["image"]);
                             return {torch::cross_entropy_loss(prediction, batch["label"]), prediction};
                           },
                           {.learning_rate = schedule});
    trainer.add_hook(tutti::hooks::batch_metrics({tutti::metrics::accuracy("label")}));
    trainer.add_hook(tutti::hooks::evaluation({.name = "test",
                                               .feed = digits.test(),
                                               .metrics = {tutti::metrics::accuracy("label")},
                                               .every_steps = test_every,
                                               .at_start = test_every > 0,
                                               .at_end = false}));
    trainer.fit(digits.train().shuffle());
    const auto test = trainer.evaluate(digits.test(), {tutti::metrics::accuracy("label")});
    if (ctx.is_chief())
      fmt::print("test accuracy {:.4f} after {} steps\n", test.at("accuracy"), trainer.step());
  });
}

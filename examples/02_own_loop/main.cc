// A plain LibTorch training loop that runs on any number of workers thanks to the lines (1) to (4).
#include <tutti/tutti.h>

#include <torch/torch.h>

#include "examples/common/digits.h"

namespace nn = torch::nn;

int main(int argc, char** argv) {
  tutti::Program program;
  program.about =
      "Trains a small network on MNIST, or on drawn digits if --data is empty, in a training loop of its "
      "own.";
  program.defaults.training.batch = 50;
  program.defaults.training.steps = 1000;

  return tutti::run(argc, argv, program, [&](tutti::Context& ctx) {
    const auto feed = example::digits(ctx.config().data.path).train().shuffle();
    nn::Sequential net(nn::Flatten(), nn::Linear(28 * 28, 128), nn::ReLU(), nn::Linear(128, 10));

    tutti::Parameters params(*net);                                                    // (1)
    tutti::DistributedOptimizer opt(ctx, params, torch::optim::AdagradOptions(0.01));  // (2)
    tutti::Loop loop(ctx, params, opt);                                                // (3)
    loop.add_hook(tutti::hooks::batch_metrics({tutti::metrics::accuracy("label")}));

    const tutti::data::Sampler sampler(feed.size(), {.seed = ctx.config().training.seed,
                                                     .lanes = opt.all_lanes(),
                                                     .batch = ctx.config().training.batch,
                                                     .drop_remainder = true});
    std::vector<int64_t> examples;
    while (loop.goes_on()) {  // (4)
      for (int64_t lane = opt.lanes().begin; lane < opt.lanes().end; ++lane) {
        sampler.examples(loop.batch(), lane, examples);
        const tutti::Batch batch = feed.read(examples);
        opt.zero_grad();
        const auto prediction = net->forward(batch["image"]);
        const auto loss = torch::cross_entropy_loss(prediction, batch["label"]);
        loop.observe(lane, batch, {loss, prediction});
        opt.backward(loss, batch.size());
      }
      opt.step();
    }
    if (ctx.is_chief()) fmt::print("weights {}\n", params.sha256());
  });
}

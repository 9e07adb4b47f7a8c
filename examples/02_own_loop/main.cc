// A plain LibTorch training loop on as many workers as there are. What makes it so is marked with (1) to (4).
#include <tutti/tutti.h>

#include <torch/torch.h>

namespace nn = torch::nn;

int main(int argc, char** argv) {
  tutti::Program program;
  program.about =
      "Trains a small network on MNIST, or on drawn digits where --data is empty, in a loop of its own.";
  program.defaults.batch = 50;
  program.defaults.steps = 1000;

  return tutti::run(argc, argv, program, [&](tutti::Context& ctx) {
    const auto feed = tutti::data::mnist(ctx.flags().data).train().shuffle();
    nn::Sequential net(nn::Flatten(), nn::Linear(28 * 28, 128), nn::ReLU(), nn::Linear(128, 10));

    tutti::Parameters params(*net);                                                    // (1)
    tutti::DistributedOptimizer opt(ctx, params, torch::optim::AdagradOptions(0.01));  // (2)
    tutti::LoopCheckpoints checkpoints(ctx, params, opt);                              // (3)

    const tutti::data::Sampler sampler(feed.size(), {.seed = ctx.flags().seed,
                                                     .lanes = opt.all_lanes(),
                                                     .batch = ctx.flags().batch,
                                                     .drop_remainder = true});
    std::vector<int64_t> examples;
    int64_t step = checkpoints.resume();  // (4)
    for (; step < ctx.flags().steps; checkpoints.after_step(++step)) {
      double loss_here = 0;
      for (int64_t lane = opt.lanes().begin; lane < opt.lanes().end; ++lane) {
        sampler.examples(step, lane, examples);
        const tutti::Batch batch = feed.read(examples);
        opt.zero_grad();
        const auto loss = torch::cross_entropy_loss(net->forward(batch["image"]), batch["label"]);
        opt.backward(loss, batch.size());
        loss_here = loss.item<double>();
      }
      opt.step();
      if (ctx.is_chief() && (step + 1) % 100 == 0) fmt::print("step {}  loss {:.4f}\n", step + 1, loss_here);
    }
    checkpoints.save(step);
    if (ctx.is_chief()) fmt::print("weights {}\n", params.sha256());
  });
}

// A hand-written training loop with all features of a Trainer. See README.md in this folder.
#include <tutti/tutti.h>

#include <torch/torch.h>

#include "examples/common/digits.h"

namespace nn = torch::nn;
using tutti::schedules::cosine;
using tutti::schedules::share;
using tutti::schedules::warm_up;

struct Net : nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(conv(x)), 4);
    return pred(torch::dropout(torch::relu(dense(x.flatten(1))), 0.2, is_training()));
  }
  nn::Conv2d conv = register_module("conv", nn::Conv2d(nn::Conv2dOptions(1, 16, 5).padding(2)));
  nn::Linear dense = register_module("dense", nn::Linear(7 * 7 * 16, 64));
  nn::Linear pred = register_module("pred", nn::Linear(64, 10));
};

tutti::LossOutput loss_of(Net& net, const tutti::Batch& batch) {
  const torch::Tensor prediction = net.forward(batch["image"]);
  return {torch::cross_entropy_loss(prediction, batch["label"]), prediction};
}

int main(int argc, char** argv) {
  tutti::Program program;
  program.about = "Trains a small network on MNIST, or on drawn digits, in a training loop with everything.";
  program.defaults.training.batch = 50;
  program.defaults.training.steps = 1000;
  double rate = 5e-3;
  program.add_flags = [&](tutti::FlagSet& flags) { tutti::add_learning_rate(flags, rate); };

  return tutti::run(argc, argv, program, [&](tutti::Context& ctx) {
    const auto digits = example::digits(ctx.config().data.path);
    const tutti::data::Feed train = digits.train().shuffle();
    const auto net = std::make_shared<Net>();
    net->to(ctx.device());  // --device
    tutti::Parameters params(*net, {.layout = tutti::layout_for(ctx, *net)});
    const tutti::OptimizerOptions adamw = {torch::optim::AdamWOptions(rate).weight_decay(0.1),
                                           {{.names = "*.bias", .weight_decay = 0}}};
    tutti::DistributedOptimizer opt(ctx, params, adamw, {.clip_norm = 1});
    const tutti::data::Sampler sampler(train.size(), {.seed = ctx.config().training.seed,
                                                      .lanes = opt.all_lanes(),
                                                      .batch = ctx.config().training.batch,
                                                      .drop_remainder = true});
    // The schedule takes its length from the run.
    tutti::Loop loop(ctx, params, opt,
                     {.steps_per_epoch = sampler.steps_per_epoch(),
                      .average = 0.99,
                      .learning_rate = warm_up(0, share(0.1), cosine(rate))});

    const auto model = tutti::make_trainable(net, loss_of);
    const tutti::metrics::List accuracy = {tutti::metrics::accuracy("label")};
    const auto measure = [&] { return loop.measure(model, digits.test(), accuracy); };
    loop.validate_with({.measure = measure, .every_steps = 250});  // of the averaged weights
    loop.add_hook(tutti::hooks::keep_best({.monitor = "accuracy"}));
    loop.add_hook(tutti::hooks::batch_metrics({tutti::metrics::accuracy("label")}));

    std::vector<int64_t> examples;
    while (loop.goes_on()) {
      for (const int64_t lane : opt.lanes_of_step()) {
        sampler.examples(loop.batch(), lane, examples);
        const tutti::Batch batch = train.read(examples).to(ctx.device());
        opt.zero_grad();  // from here on, random numbers and --precision are set for the lane
        const tutti::LossOutput output = loss_of(*net, batch);
        loop.observe(lane, batch, output);  // for --nan-guard and the accuracy of the batch
        opt.backward(output.loss, batch.size());
      }
      opt.step();
    }

    std::map<std::string, double> test;
    loop.with_average([&] { test = measure(); });
    if (ctx.is_chief())
      fmt::print("test accuracy {:.4f}\nweights {}\n", test.at("accuracy"), params.sha256());
  });
}

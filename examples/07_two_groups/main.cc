// Two models at once: the workers of one job are split into two groups, and each group trains a different
// model, with a separate log directory, checkpoints and report. If the job has parameter servers, both groups
// use them. The program does not use tutti::run(): Tutti reads no flags, installs no signal handlers, and
// reports errors as exceptions.
#include <cstdio>
#include <string>
#include <tutti/tutti.h>

#include <fmt/format.h>
#include <torch/torch.h>

namespace {

// Points in the plane, labelled by the side of a parabola on which they are.
tutti::data::Feed points() {
  torch::manual_seed(5);
  const torch::Tensor x = torch::randn({2000, 2});
  const torch::Tensor label = (x.select(1, 1) > x.select(1, 0).square() - 1).to(torch::kInt64);
  return tutti::data::Feed(tutti::data::from_tensors({{"x", x}, {"label", label}})).shuffle();
}

torch::nn::Sequential net_of(int64_t width) {
  torch::manual_seed(1);
  return torch::nn::Sequential{torch::nn::Linear(2, width), torch::nn::Tanh(), torch::nn::Linear(width, 2)};
}

void train(const std::string& folder, int64_t steps, const std::string& strategy) {
  tutti::RunConfig config;
  config.training.steps = steps;
  config.training.strategy = strategy;
  config.training.lanes = 4;  // so that the bits do not depend on the number of workers
  config.compute.threads = 1;
  config.output.log_level = "warning";
  const tutti::Context ctx(config);  // finds out which task of the launcher this process is
  if (tutti::is_server_job(ctx.task().job)) return tutti::serve(ctx);
  const tutti::data::Feed feed = points();
  // With four workers, the ranks 0 and 2 train the narrow model, 1 and 3 the wide one.
  const tutti::Group mine = tutti::all_workers(ctx).split([](int rank) { return rank % 2; });
  const bool wide = ctx.rank() % 2 == 1;
  const std::string name = wide ? "wide" : "narrow";
  config.checkpoints.logdir = folder + "/" + name;
  config.checkpoints.every = "10";
  config.output.report = folder + "/" + name + ".json";
  const tutti::OptimizerOptions adam = torch::optim::AdamOptions(0.01);
  tutti::Trainer trainer(ctx.with(config), net_of(wide ? 64 : 4), adam,
                         [](torch::nn::SequentialImpl& net, const tutti::Batch& batch) {
                           return torch::nn::functional::cross_entropy(net.forward(batch["x"]),
                                                                       batch["label"]);
                         },
                         {.group = mine});
  trainer.fit(feed);
  if (mine.is_chief())
    fmt::print("{}: {} workers, {} steps, weights {}\n", name, mine.world, trainer.step(),
               trainer.parameters().sha256());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    fmt::print(stderr, "usage: {} FOLDER STEPS [STRATEGY]\n", argv[0]);
    return 2;
  }
  try {
    train(argv[1], std::stol(argv[2]), argc == 4 ? argv[3] : "");
    return 0;
  } catch (const tutti::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}

// Learns from tables in shards which objects are active. See README.md in this folder.
#include <tutti/tutti.h>

#include <torch/torch.h>

#include "examples/05_descriptors/make_data.h"

namespace data = tutti::data;
namespace nn = tutti::nn;

int main(int argc, char** argv) {
  tutti::Program program;
  program.about = "Learns from sharded tables of descriptors; --make-data writes example tables first.";
  program.defaults.data.path = "descriptors";
  program.defaults.training.lanes = 2;
  program.defaults.training.batch = 50;
  program.defaults.training.steps = 1000;
  program.defaults.compute.threads = 1;
  bool make = false;
  std::string partition = "all";
  std::string predictions;
  int64_t starts = 2;
  bool full_batch = false;
  program.add_flags = [&](tutti::FlagSet& flags) {
    flags.add("--make-data", make, "write tables into the folder --data, and exit");
    flags.add_choice("--partition", partition, {"all", "size", "mod"},
                     "shards that a worker reads: all, those of its lanes (size), or its share (mod)");
    flags.add("--starts", starts, "number of runs from different initial weights; the best one is kept");
    flags.between("--starts", 1, 1000);
    flags.add("--full-batch", full_batch, "train on all examples at once by L-BFGS, for --steps iterations");
    flags.add("--predictions", predictions, "table to write, with a prediction for each test example");
    flags.scope(tutti::FlagScope::Local, {"--predictions"});
    flags.scope(tutti::FlagScope::Model, {"--partition"});
  };

  return tutti::run(argc, argv, program, [&](tutti::Context& ctx) {
    const std::string folder = ctx.config().data.path;
    if (make) {
      make_data(folder + "/train", 8000, 4, 1);
      make_data(folder + "/test", 2000, 1, 2);
      return;
    }
    const data::Schema schema = {{"desc", {"descriptors.tsv"}}, {"targ", {"targets.tsv"}}};
    const data::Feed train =
        data::distributed_feed(ctx, folder + "/train", schema,
                               {.master_table = "desc", .partition = data::parse_partition(partition)});
    const data::Feed test = data::distributed_feed(
        ctx, folder + "/test", schema, {.master_table = "desc", .partition = data::Partition::All});

    tutti::Model model(ctx);
    const auto desc = model.input("desc");
    const auto targ = model.target("targ");
    const auto logits = model.net(
        nn::WindowInput() | nn::Dense(20, torch::tanh) | nn::Dense(5, torch::tanh) | nn::Dense(1), desc);
    model.output("pred", torch::sigmoid, logits);
    model.loss("xent", nn::xent_uniform_sum, targ, logits);
    model.loss(
        "l2", [](const torch::Tensor& weights) { return nn::l2_penalty(weights, 1e-3); }, model.weights());
    model.metric(tutti::metrics::auc("targ"), logits);

    if (full_batch) {
      const auto search =
          torch::optim::LBFGSOptions(1).max_iter(ctx.config().training.steps).line_search_fn("strong_wolfe");
      model.fit(train, search, {.restarts = starts});
    } else {
      model.fit(train.shuffle(), torch::optim::AdamOptions(1e-3), {.restarts = starts});
    }
    const auto metrics = model.evaluate(test);
    if (ctx.is_chief()) fmt::print("AUC: {}\n", metrics.at("auc"));
    if (!predictions.empty()) model.predict(test, predictions);
  });
}

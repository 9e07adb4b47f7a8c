// Predicts clicks from 26 ids and 13 numbers: sharded embeddings, and a small network on every worker. See
// README.md in this folder.
#include <tutti/tutti.h>

#include <torch/torch.h>

#include "examples/10_clicks/clicks.h"

namespace {

struct Net : torch::nn::Module {
  Net(int64_t rows, int64_t dim)
      : dense(register_module(
            "dense", torch::nn::Sequential{torch::nn::Linear(example::kTables * dim + example::kNumbers, 64),
                                           torch::nn::ReLU(), torch::nn::Linear(64, 64), torch::nn::ReLU(),
                                           torch::nn::Linear(64, 1)})) {
    for (int64_t table = 0; table < example::kTables; ++table)
      tables.push_back(register_module(example::id_column(table), tutti::nn::Embedding(rows, dim)));  // (1)
  }

  torch::Tensor forward(const tutti::Batch& batch) {
    std::vector<torch::Tensor> inputs = {batch["numbers"]};
    for (size_t table = 0; table < tables.size(); ++table)
      inputs.push_back(tables[table](batch[example::id_column(static_cast<int64_t>(table))]));  // (2)
    return dense->forward(torch::cat(inputs, 1)).squeeze(1);
  }

  torch::nn::Sequential dense;
  std::vector<tutti::nn::Embedding> tables;
};

// Gives each lane separate examples: the second has twice as many as the first, the third three times as
// many.
std::vector<tutti::data::ExampleRange> uneven(int64_t lanes, int64_t examples) {
  const auto begin = [&](int64_t lane) { return examples * (lane * (lane + 1)) / (lanes * (lanes + 1)); };
  std::vector<tutti::data::ExampleRange> ranges;
  for (int64_t lane = 0; lane < lanes; ++lane) ranges.push_back({begin(lane), begin(lane + 1)});
  return ranges;
}

}  // namespace

int main(int argc, char** argv) {
  tutti::Program program;
  program.about = "Predicts clicks with embeddings that are spread over the workers.";
  program.defaults.training.lanes = 2;
  program.defaults.training.batch = 1024;
  program.defaults.compute.threads = 1;
  example::ClickOptions options;
  int64_t tested = 20000;
  int64_t dim = 16;
  double rate = 0.05;
  bool is_uneven = false;
  int64_t evaluate_every = 200;
  std::string export_to;
  program.add_flags = [&](tutti::FlagSet& flags) {
    flags.add("--examples", options.examples, "the number of training examples");
    flags.add("--tested", tested, "the number of test examples");
    flags.add("--rows", options.rows, "the number of rows of each table");
    flags.add("--dim", dim, "the numbers in a row");
    tutti::add_learning_rate(flags, rate);
    flags.add("--uneven", is_uneven, "gives each lane another number of training examples");
    flags.add("--evaluate-every", evaluate_every, "steps between two evaluations; 0: none but the last");
    flags.add("--export-to", export_to, "folder for the exported model; \"\": it is not exported");
    flags.at_least("--evaluate-every", 0);
    for (const char* name : {"--examples", "--tested", "--rows", "--dim"}) flags.at_least(name, 1);
    flags.scope(tutti::FlagScope::Model, {"--rows", "--dim", "--uneven"});
    flags.scope(tutti::FlagScope::Local, {"--export-to"});
  };

  return tutti::run(argc, argv, program, [&](tutti::Context& ctx) {
    example::ClickOptions other = options;
    other.examples = tested;
    other.seed = options.seed + 1;
    const auto train = example::clicks(options);
    const auto test = example::clicks(other);

    const auto net = std::make_shared<Net>(options.rows, dim);
    const auto loss = [](Net& model, const tutti::Batch& batch) -> tutti::LossOutput {
      const torch::Tensor logits = model.forward(batch);
      return {torch::binary_cross_entropy_with_logits(logits, batch["click"]), logits};
    };
    tutti::Trainer trainer(ctx, net, torch::optim::AdagradOptions(rate), loss);
    trainer.add_hook(tutti::hooks::evaluation({.name = "test",
                                               .feed = test,
                                               .metrics = {tutti::metrics::auc("click")},
                                               .every_steps = evaluate_every}));  // (3)
    trainer.fit(is_uneven ? train.shuffle().deal(uneven) : train.shuffle());      // (5)
    if (!export_to.empty()) {
      const std::string path = trainer.export_model(export_to, test);  // (4)
      if (ctx.is_chief() && !path.empty()) fmt::print("exported to {}\n", path);
    }

    const auto values = trainer.evaluate(test, {tutti::metrics::auc("click")});
    if (!ctx.is_chief() || !values.contains("auc")) return;  // no value if the examples are all of one class
    const auto best = tutti::metrics::auc("click");
    for (int64_t begin = 0; begin < test.size(); begin += 1000) {
      std::vector<int64_t> examples;
      for (int64_t i = begin; i < std::min(begin + 1000, test.size()); ++i) examples.push_back(i);
      const tutti::Batch batch = test.read(examples);
      best->update(batch["truth"], batch);
    }
    fmt::print("AUC {:.5f}; with the true probabilities {:.5f}\n", values.at("auc"),
               best->value().value_or(0));
  });
}

// Trains a model with sharded tables, for tests in processes: one table has two columns, another has lists of
// ids, and there is dropout and batch norm.
#include <random>
#include <tutti/tutti.h>

#include <fmt/format.h>
#include <torch/torch.h>

#include "tests/fault.h"
#include "tests/misfortune.h"

namespace tables_program {
namespace {

using tutti::Batch;

struct Options {
  int64_t rows = 5000;
  bool dynamic = false;
  int64_t admit_after = 1;
  int64_t evict_unused_for = 0;
  bool replace_oldest = false;
  std::string placement = "mod";
  std::string optimizer = "adagrad";
  double clip_norm = 0;
  double average = 0;
  std::string weights;  // a file or checkpoint to start from
  int64_t stop_after = 0;
  bool keep_best = false;
  bool bare = false;
  bool two_groups = false;
  std::string fault;
  std::string misfortune;
  int64_t await_world = 0;
  bool own_loop = false;
  std::string export_to;  // a folder
  std::string checker;    // of exports: this program may run in a fork of the tests
};

constexpr int64_t kExamples = 3000;
constexpr int64_t kDim = 8;
constexpr int64_t kLongest = 4;

// Power-law ids, and a target that depends on them.
tutti::data::Feed examples(const Options& options, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto unit = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
  const auto id = [&] {
    const double u = unit();
    return static_cast<int64_t>(static_cast<double>(options.rows) * u * u * u);
  };
  const torch::Tensor user = torch::empty({kExamples}, torch::kLong);
  const torch::Tensor other = torch::empty({kExamples}, torch::kLong);
  const torch::Tensor items = torch::full({kExamples, kLongest}, -1, torch::kLong);
  const torch::Tensor click = torch::empty({kExamples});
  auto users = user.accessor<int64_t, 1>();
  auto others = other.accessor<int64_t, 1>();
  auto lists = items.accessor<int64_t, 2>();
  auto clicks = click.accessor<float, 1>();
  for (int64_t i = 0; i < kExamples; ++i) {
    users[i] = id();
    others[i] = id();
    const auto count = static_cast<int64_t>(random() % (kLongest + 1));
    for (int64_t k = 0; k < count; ++k) lists[i][k] = id();
    clicks[i] = unit() < ((users[i] + others[i]) % 3 == 0 ? 0.8 : 0.3) ? 1 : 0;
  }
  return tutti::data::Feed(
      tutti::data::from_tensors({{"user", user}, {"other", other}, {"items", items}, {"click", click}}));
}

struct Net : torch::nn::Module {
  explicit Net(const Options& options) {
    using Embedding = tutti::nn::Embedding;
    tutti::nn::EmbeddingOptions table{
        .columns = {"user", "other"},
        .placement = tutti::embedding::parse_placement(options.placement, "a flag"),
        .dynamic = options.dynamic};
    table.replicate_up_to = 0;
    table.admit_after = options.admit_after;
    table.evict_unused_for = options.evict_unused_for;
    if (options.replace_oldest) table.when_full = tutti::embedding::WhenFull::ReplaceOldest;
    users = register_module("users", Embedding(options.rows, kDim, table));
    table.columns = {"items"};
    table.optimizer = tutti::embedding::RowwiseAdagrad{.rate = 0.1};
    items = register_module("items",
                            tutti::nn::EmbeddingBag(options.rows, kDim, tutti::nn::Pooling::Mean, table));
    if (options.bare) return;
    dense = register_module(
        "dense", torch::nn::Sequential{torch::nn::Linear(3 * kDim, 16), torch::nn::BatchNorm1d(16),
                                       torch::nn::ReLU(), torch::nn::Dropout(0.3), torch::nn::Linear(16, 1)});
  }

  torch::Tensor forward(const Batch& batch) {
    if (dense.is_empty())
      return (users(batch["user"]) * users(batch["other"])).sum(1) + items(batch["items"]).sum(1);
    return dense->forward(torch::cat({users(batch["user"]), users(batch["other"]), items(batch["items"])}, 1))
        .squeeze(1);
  }

  tutti::nn::Embedding users{nullptr};
  tutti::nn::EmbeddingBag items{nullptr};
  torch::nn::Sequential dense{nullptr};
};

// SGD, by a worker that may not survive it.
tutti::ElementwiseOptimizer mortal_optimizer(const tutti::Context& ctx, const Options& options) {
  return {.name = "mortal",
          .rate = 0.1,
          .update = [&ctx, misfortune = tutti::testing::Misfortune(options.misfortune)](
                        const tutti::ElementwiseUpdate& u) {
            misfortune.updates(ctx, u.step);
            u.values.sub_(u.grads, u.rate);
          }};
}

tutti::OptimizerOptions optimizer_of(const tutti::Context& ctx, const Options& options) {
  if (options.optimizer == "mortal") return mortal_optimizer(ctx, options);
  if (options.optimizer == "sgd") return torch::optim::SGDOptions(0.1);
  if (options.optimizer == "momentum") return torch::optim::SGDOptions(0.05).momentum(0.9);
  if (options.optimizer == "adam") return torch::optim::AdamOptions(0.01);
  if (options.optimizer == "ftrl") return tutti::FtrlOptions{.rate = 0.1, .l1 = 0.001, .beta = 1};
  return torch::optim::AdagradOptions(0.1);
}

class StopAfter final : public tutti::Hook {
 public:
  explicit StopAfter(int64_t step) : step_(step) {}
  void after_step(tutti::Training& training, const tutti::StepResult&) override {
    if (step_ > 0 && training.step == step_) training.stop_reason = "the test wants it";
  }

 private:
  const int64_t step_;
};

using tutti::testing::Fault;

tutti::LossOutput loss_of(Net& net, const Batch& batch, Fault* fault = nullptr) {
  torch::Tensor logits = net.forward(batch);
  if (fault != nullptr) logits = fault->in(logits);
  return {torch::binary_cross_entropy_with_logits(logits, batch["click"]), logits};
}

tutti::Evaluation validation(const Options& options) {
  return {
      .feed = examples(options, 2).take(500), .metrics = {tutti::metrics::auc("click")}, .every_steps = 7};
}

// Trains as the Trainer in main() does.
void train_in_own_loop(const tutti::Context& ctx, const Options& options, const std::shared_ptr<Net>& net) {
  const auto feed = examples(options, 1).shuffle();
  tutti::Parameters params(*net, {.may_be_empty = true});
  tutti::DistributedOptimizer opt(ctx, params, optimizer_of(ctx, options),
                                  {.clip_norm = options.clip_norm, .module = net});
  const tutti::data::Sampler sampler(feed.size(), {.order = feed.order(),
                                                   .seed = ctx.config().training.seed,
                                                   .lanes = opt.all_lanes(),
                                                   .batch = ctx.config().training.batch,
                                                   .drop_remainder = true});
  tutti::Loop loop(ctx, params, opt,
                   {.steps_per_epoch = sampler.steps_per_epoch(), .average = options.average});
  loop.add_hook(std::make_unique<StopAfter>(options.stop_after));
  if (options.keep_best) loop.add_hook(tutti::hooks::keep_best({.monitor = "auc"}));
  auto faults = std::make_unique<Fault>(options.fault);
  Fault* const fault = faults.get();
  loop.add_hook(std::move(faults));
  loop.add_hook(std::make_unique<tutti::testing::Misfortune>(options.misfortune));
  loop.add_hook(std::make_unique<tutti::testing::AwaitWorld>(options.await_world));
  const auto loss = [](Net& of, const Batch& batch) { return loss_of(of, batch); };
  tutti::Evaluation evaluation = validation(options);
  evaluation.model = tutti::make_trainable(net, loss);
  loop.validate_with(evaluation);
  std::vector<int64_t> ids;
  while (loop.goes_on()) {
    std::vector<Batch> batches;
    for (const int64_t lane : opt.lanes_of_step()) {
      sampler.examples(loop.batch(), lane, ids);
      batches.push_back(feed.read(ids));
    }
    if (!opt.fetch(batches)) continue;
    for (const Batch& batch : batches) {
      opt.zero_grad();
      opt.backward(loss_of(*net, batch, fault).loss, batch.size());
    }
    opt.step();
  }
  if (options.export_to.empty()) return;
  tutti::Trainable model = tutti::make_trainable(net, loss);
  model.predict = [net](const Batch& batch) { return net->forward(batch); };
  loop.export_model(options.export_to, model, *evaluation.feed);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  tutti::Program program;
  program.add_flags = [&](tutti::FlagSet& flags) {
    flags.add("--rows", options.rows, "the rows of each table, or the most of a dynamic one");
    flags.add("--dynamic", options.dynamic, "the tables grow");
    flags.add("--admit-after", options.admit_after, "lookups before an id gets a row");
    flags.add("--evict-unused-for", options.evict_unused_for, "steps after which an unused row is dropped");
    flags.add("--replace-oldest", options.replace_oldest, "what a full table does");
    flags.add_choice("--place", options.placement, {"mod", "block", "hash"}, "the owners of rows");
    flags.add_choice("--optimizer", options.optimizer,
                     {"adagrad", "sgd", "momentum", "adam", "ftrl", "mortal"}, "which one");
    flags.add("--clip-norm", options.clip_norm, "the largest norm of the gradient; 0: any");
    flags.add("--average", options.average, "the decay of a moving average of the weights");
    flags.add("--weights", options.weights, "a checkpoint whose weights the model begins with");
    flags.add("--stop-at", options.stop_after, "the step after which a hook ends the training");
    flags.add("--keep-best", options.keep_best, "save the weights with the best AUC");
    flags.add("--own-loop", options.own_loop, "train in a loop of its own");
    flags.add("--export-to", options.export_to, "where the loop of its own exports the model");
    flags.add("--export-checker", options.checker, "the program that checks the exported model");
    flags.add("--fault", options.fault, "which worker computes wrongly at which step");
    flags.add("--misfortune", options.misfortune, "what befalls which worker at which step");
    flags.add("--await-world", options.await_world, "how many workers are awaited before the last step");
    flags.add("--bare", options.bare, "the tables are all that the model learns");
    flags.add(
        "--two-groups", options.two_groups,
        "the even workers train the model, and so do the odd ones; the reports are REPORT.0 and REPORT.1");
    flags.scope(tutti::FlagScope::Local, {"--place", "--weights", "--export-to"});
  };
  return tutti::run(argc, argv, program, [&](tutti::Context& ctx) {
    const auto net = std::make_shared<Net>(options);
    if (!options.weights.empty()) tutti::load_weights(*net, options.weights);
    tutti::RunConfig config = ctx.config();
    if (!options.checker.empty()) config.exports.checker = options.checker;
    if (options.own_loop) return train_in_own_loop(ctx.with(config), options, net);
    tutti::TrainerOptions how{.clip_norm = options.clip_norm, .average = options.average};
    if (options.two_groups) {
      how.group = tutti::all_workers(ctx).split([](int rank) { return rank % 2; });
      config.output.report += fmt::format(".{}", ctx.rank() % 2);
    }
    auto faults = std::make_unique<Fault>(options.fault);
    const auto loss = [fault = faults.get()](Net& of, const Batch& batch) {
      return loss_of(of, batch, fault);
    };
    tutti::Trainer trainer(ctx.with(config), net, optimizer_of(ctx, options), loss, how);
    trainer.add_hook(std::move(faults));
    trainer.add_hook(std::make_unique<tutti::testing::Misfortune>(options.misfortune));
    trainer.add_hook(std::make_unique<tutti::testing::AwaitWorld>(options.await_world));
    trainer.add_hook(std::make_unique<StopAfter>(options.stop_after));
    if (options.keep_best) trainer.add_hook(tutti::hooks::keep_best({.monitor = "auc"}));
    trainer.fit(examples(options, 1).shuffle(), {.validate = validation(options)});
    trainer.evaluate(*validation(options).feed, {tutti::metrics::auc("click")});
  });
}

}  // namespace tables_program

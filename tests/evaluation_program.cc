// The program of evaluation_test and evaluator_test: a small training that is evaluated in several ways.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>
#include <tutti/tutti.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include "tutti/train/test_training.h"

namespace evaluation_program {
namespace {

struct Options {
  std::string net = "normed";
  bool dynamic = false;
  std::string form = "feed";
  bool own_loop = false;
  int64_t every = 0;
  bool at_start = false;
  bool at_end = false;
  int64_t batches = 0;
  int64_t fits = 1;
  double average = 0;
  bool stop_early = false;
  bool keep_best = false;
  std::string here;
  std::string summary_dir;
  int64_t kill_at = -1;
  int64_t kill_evaluator_at = -1;
  int64_t fail_evaluator_at = -1;
  int64_t wait_at = -1;
  std::string wait_for;
};

constexpr int64_t kRows = 256;
constexpr int64_t kTrainedRows = 64;

// A table that is sharded, and a layer on top of it.
struct Tables : torch::nn::Module {
  explicit Tables(bool dynamic) {
    tutti::embedding::TableOptions options;
    options.replicate_up_to = 0;
    options.dynamic = dynamic;
    if (dynamic) options.admit_after = 2;
    ids = register_module("id", tutti::nn::Embedding(kRows, 4, options));
  }
  torch::Tensor forward(const torch::Tensor& id) { return torch::sigmoid(dense(ids(id))).squeeze(1); }
  tutti::nn::Embedding ids = nullptr;
  torch::nn::Linear dense = register_module("dense", torch::nn::Linear(4, 1));
};

tutti::data::Feed ids_feed(int64_t examples, int64_t rows) {
  const torch::Tensor id = torch::arange(examples) * 7 % rows;
  return tutti::data::Feed(tutti::data::from_tensors({{"id", id}, {"y", (id % 3 == 0).to(torch::kFloat32)}}));
}

// The flags: they say which model is trained, and how it is evaluated.
struct Task {
  tutti::Trainable model;
  tutti::data::Feed train;
  tutti::data::Feed test;
  tutti::metrics::List metrics;
};

Task task_of(const Options& options) {
  if (options.net == "tables") {
    const auto net = std::make_shared<Tables>(options.dynamic);
    const auto loss = [](Tables& model, const tutti::Batch& batch) {
      return torch::binary_cross_entropy(model.forward(batch["id"]), batch["y"]);
    };
    return {tutti::make_trainable(net, loss, {.input = "id"}),
            ids_feed(400, kTrainedRows),
            ids_feed(90, kRows),  // has ids that are never trained, too
            {tutti::metrics::auc("y", {.num_thresholds = 20})}};
  }
  const auto net = tutti::test_net();
  return {tutti::make_trainable(net, tutti::test_loss),
          tutti::test_feed(100),
          tutti::test_feed(70),
          {tutti::metrics::accuracy("label")}};
}

// Kills a task once, in the middle of what it does.
void kill_once(const std::string& logdir, const std::string& what) {
  const std::string mark = logdir + "/killed-" + what;
  if (std::filesystem::exists(mark)) return;
  std::ofstream(mark) << "\n";
  std::raise(SIGKILL);
}

class Disturb final : public tutti::Hook {
 public:
  explicit Disturb(const Options& options) : options_(options) {}
  void before_step(tutti::Training& training) override {
    if (!training.group.is_chief()) return;
    while (training.step == options_.wait_at && !std::filesystem::exists(options_.wait_for))
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (training.step == options_.kill_at) kill_once(training.folder, "chief");
  }
  void evaluate(tutti::Training& training) override {
    const std::string& logdir = training.context.config().checkpoints.logdir;
    if (training.step == options_.kill_evaluator_at) kill_once(logdir, "evaluator");
    if (training.step == options_.fail_evaluator_at) throw std::runtime_error("the evaluator is on fire");
  }

 private:
  const Options options_;
};

void print(const std::string& who, const std::vector<tutti::Evaluated>& rows) {
  for (const auto& [step, values] : rows)
    fmt::print("{} step {} {}\n", who, step, nlohmann::json(values).dump());
}

template <class Training>
void add_hooks(Training& training, const Options& options, const Task& task,
               std::vector<tutti::Evaluated>& rows,
               const std::function<std::map<std::string, double>()>& measure) {
  tutti::Evaluation evaluation{.name = "test",
                               .batch = 16,
                               .steps = options.batches,
                               .every_steps = options.every,
                               .at_start = options.at_start,
                               .at_end = options.at_end,
                               .summary_dir = options.summary_dir,
                               .history = &rows};
  if (options.form == "function") {
    evaluation.measure = measure;
    training.add_hook(tutti::hooks::evaluation(evaluation));
  } else if (options.form == "feed") {
    evaluation.feed = task.test;
    evaluation.metrics = task.metrics;
    if (options.own_loop) evaluation.model = task.model;
    training.add_hook(tutti::hooks::evaluation(evaluation));
    evaluation.name = "train";
    evaluation.feed = task.train;
    evaluation.history = nullptr;
    evaluation.summary_dir.clear();
    training.add_hook(tutti::hooks::evaluation(evaluation));
  }
  if (options.stop_early)
    training.add_hook(tutti::hooks::early_stopping({.monitor = "test_loss", .patience = 1}));
  if (options.keep_best) training.add_hook(tutti::hooks::keep_best({.monitor = "test_loss"}));
  training.add_hook(std::make_unique<Disturb>(options));
}

void train(tutti::Context& ctx, const Options& options) {
  const Task task = task_of(options);
  std::vector<tutti::Evaluated> rows;
  tutti::Trainer trainer(ctx, task.model, torch::optim::AdamOptions(1e-2), {.average = options.average});
  add_hooks(trainer, options, task, rows, [&] {
    return trainer.measure(task.test, task.metrics, {.batch = 16, .steps = options.batches});
  });
  ctx.events().text("about", 0, "a test");
  for (int64_t fit = 0; fit < options.fits; ++fit) {
    const tutti::History history = trainer.fit(task.train.shuffle());
    if (ctx.identity().is_evaluator) fmt::print("fit {} has {} rows\n", fit, history.rows.size());
    ctx.events().scalar("mine", trainer.step(), static_cast<double>(fit));
  }
  print(ctx.identity().is_evaluator ? "evaluated" : "rows", rows);
  if (options.here.empty()) return;
  if (options.here == "chief" && !ctx.is_chief()) return;
  const auto values =
      trainer.evaluate(task.test, task.metrics, {.batch = 16, .here = options.here == "chief"});
  if (ctx.is_chief()) fmt::print("at the end {}\n", nlohmann::json(values).dump());
}

void train_in_own_loop(tutti::Context& ctx, const Options& options) {
  const Task task = task_of(options);
  const auto feed = task.train.shuffle();
  std::vector<tutti::Evaluated> rows;
  tutti::Parameters params(*task.model.module);
  tutti::DistributedOptimizer opt(ctx, params, torch::optim::AdamOptions(1e-2));
  const tutti::data::Sampler sampler(feed.size(), {.seed = ctx.config().training.seed,
                                                   .lanes = opt.all_lanes(),
                                                   .batch = ctx.config().training.batch,
                                                   .drop_remainder = true});
  tutti::Loop loop(ctx, params, opt,
                   {.steps_per_epoch = sampler.steps_per_epoch(), .average = options.average});
  add_hooks(loop, options, task, rows, [&] {
    return loop.measure(task.model, task.test, task.metrics, {.batch = 16, .steps = options.batches});
  });
  std::vector<int64_t> examples;
  while (loop.goes_on()) {
    for (int64_t lane = opt.lanes().begin; lane < opt.lanes().end; ++lane) {
      sampler.examples(loop.batch(), lane, examples);
      const tutti::Batch batch = feed.read(examples);
      opt.zero_grad();
      opt.backward(task.model.loss(batch).loss, batch.size());
    }
    opt.step();
  }
  print(ctx.identity().is_evaluator ? "evaluated" : "rows", rows);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  tutti::Program program;
  program.defaults.training.lanes = 4;
  program.defaults.training.batch = 5;
  program.defaults.compute.threads = 1;
  program.defaults.compute.device = "cpu";
  program.add_flags = [&](tutti::FlagSet& flags) {
    flags.add_choice("--net", options.net, {"normed", "tables"}, "which network");
    flags.add("--dynamic", options.dynamic, "the table grows");
    flags.add_choice("--form", options.form, {"feed", "function", "none"}, "how it is evaluated");
    flags.add("--own-loop", options.own_loop, "train in a loop of its own");
    flags.add("--every", options.every, "steps between evaluations");
    flags.add("--at-start", options.at_start, "evaluate before the first step");
    flags.add("--at-end", options.at_end, "evaluate after the last step");
    flags.add("--batches", options.batches, "batches of an evaluation");
    flags.add("--fits", options.fits, "how many times to call fit()");
    flags.add("--average", options.average, "the decay of a moving average of the weights");
    flags.add("--stop-early", options.stop_early, "stop when the loss gets no smaller");
    flags.add("--keep-best", options.keep_best, "keep the weights of the smallest loss");
    flags.add("--here", options.here, "evaluate at the end, on the 'chief' alone or on 'all'");
    flags.add("--summary-dir", options.summary_dir, "where the evaluation writes its events");
    flags.add("--kill-at", options.kill_at, "the step at which the chief is killed, once");
    flags.add("--kill-evaluator-at", options.kill_evaluator_at,
              "the checkpoint at which the evaluator is killed, once");
    flags.add("--fail-evaluator-at", options.fail_evaluator_at,
              "the checkpoint at which the evaluator fails");
    flags.add("--wait-at", options.wait_at, "the step at which the chief waits for a file");
    flags.add("--wait-for", options.wait_for, "the file");
    flags.scope(tutti::FlagScope::Local,
                {"--kill-at", "--wait-at", "--wait-for", "--here", "--every", "--at-end", "--at-start",
                 "--form", "--summary-dir", "--kill-evaluator-at"});
  };
  return tutti::run(argc, argv, program, [&](tutti::Context& ctx) {
    options.own_loop ? train_in_own_loop(ctx, options) : train(ctx, options);
  });
}

}  // namespace evaluation_program

#include <cmath>
#include <csignal>
#include <filesystem>
#include <map>
#include <set>

#include <gmock/gmock.h>

#include "tutti/base/error.h"
#include "tutti/base/hashes.h"
#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/comm/test_ranks.h"
#include "tutti/embedding/embedding.h"
#include "tutti/metrics/metrics.h"
#include "tutti/store/checkpoint.h"
#include "tutti/train/hooks.h"
#include "tutti/train/load.h"
#include "tutti/train/test_trainer.h"

// Tests what a run must find again besides its weights, and what depends on it: hooks, validation,
// history, moving averages.
namespace tutti::state_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kSteps = 40;

RunConfig config_in(const std::string& logdir) {
  RunConfig config = test_flags();
  config.training.steps = kSteps;
  config.checkpoints.logdir = logdir;
  config.checkpoints.every = "3";
  return config;
}

// The options of a fit that validates every fifth step.
FitOptions validated() {
  FitOptions options;
  options.validate.feed = test_feed(32);
  options.validate.metrics = {metrics::accuracy("label")};
  options.validate.every_steps = 5;
  return options;
}

std::unique_ptr<Hook> crash_after(std::optional<int64_t> step) {
  return std::make_unique<AfterStep>([step](Training& training) {
    if (training.step == step) throw std::runtime_error("crash");
  });
}

struct Result {
  int64_t step = 0;
  std::string hash;
  std::vector<History::Row> rows;
  bool operator==(const Result&) const = default;
};

// Trains with these hooks; a crash leaves an empty history.
Result run(const RunConfig& config, std::optional<int64_t> crash,
           const std::function<void(Trainer&)>& prepare = {}, const FitOptions& options = validated(),
           const TrainerOptions& trainer_options = {}) {
  const Context context = test_context(config);
  Trainer trainer(context, test_net(), kAdam, test_loss, trainer_options);
  if (prepare) prepare(trainer);
  trainer.add_hook(crash_after(crash));
  History history;
  try {
    history = trainer.fit(test_feed().shuffle(), options);
  } catch (const std::runtime_error&) {
    if (!crash) throw;
  }
  return {trainer.step(), trainer.parameters().sha256(), history.rows};
}

TEST(State, a_validation_leaves_the_training_as_it_is) {
  EXPECT_EQ(run(config_in(""), {}).hash, run(config_in(""), {}, {}, {}).hash);
}

// The feed has 25 steps in an epoch.
TEST(State, a_fit_returns_a_row_for_each_epoch_and_validation) {
  FitOptions options = validated();
  options.validate.every_steps = 10;
  const Result result = run(config_in(""), {}, {}, options);
  std::vector<int64_t> steps;
  for (const History::Row& row : result.rows) steps.push_back(row.step);
  EXPECT_THAT(steps, ElementsAre(10, 20, 25, 30, 40));
  EXPECT_TRUE(result.rows[2].validation.empty());
  EXPECT_EQ(result.rows[2].epoch, 0);
  EXPECT_EQ(result.rows[3].epoch, 1);
  for (const History::Row& row : result.rows) EXPECT_TRUE(row.loss.has_value()) << row.step;
  EXPECT_GT(result.rows[4].validation.at("accuracy"), result.rows[0].validation.at("accuracy"));
  EXPECT_LT(result.rows[4].validation.at("loss"), result.rows[0].validation.at("loss"));
}

TEST(State, the_training_loss_of_an_epoch_is_the_mean_over_its_examples) {
  RunConfig config = config_in("");
  config.training.steps = 25;
  double sum = 0;
  class Sum final : public Hook {
   public:
    explicit Sum(double& sum) : sum_(sum) {}
    void after_step(Training&, const StepResult& result) override { sum_ += result.loss_sum.item<double>(); }

   private:
    double& sum_;
  };
  const Result result =
      run(config, {}, [&](Trainer& trainer) { trainer.add_hook(std::make_unique<Sum>(sum)); }, {});
  ASSERT_EQ(result.rows.size(), 1U);
  EXPECT_NEAR(*result.rows[0].loss, sum / 100, 1e-12);
}

TEST(State, a_model_without_predictions_is_validated_by_its_loss) {
  const Context context = test_context(config_in(""));
  const auto net = test_net();
  Trainable model = make_trainable(net, test_loss);
  model.predict = {};
  Trainer trainer(context, model, kAdam);
  FitOptions options = validated();
  options.validate.metrics = {};
  const History history = trainer.fit(test_feed().shuffle(), options);
  EXPECT_EQ(history.rows.back().validation.size(), 1U);
  EXPECT_TRUE(std::isfinite(history.rows.back().validation.at("loss")));
}

// Resumed after a crash at any step, also between two checkpoints, the run gives the same weights and
// history.
TEST(State, early_stopping_ends_a_resumed_run_at_the_same_step) {
  const auto stopping = [](Trainer& trainer) {
    trainer.add_hook(hooks::early_stopping({.monitor = "accuracy", .patience = 1}));
  };
  const Result straight = run(config_in(""), {}, stopping);
  EXPECT_LT(straight.step, kSteps);
  for (const int64_t crash : {4, 9, 11, 14}) {
    const TestFolder folder;
    const RunConfig config = config_in(folder / "run");
    run(config, crash, stopping);
    EXPECT_EQ(run(config, {}, stopping), straight) << crash;
    // The fit stays complete.
    EXPECT_EQ(run(config, {}, stopping).step, straight.step);
  }
}

// A signal is no reason to validate: the resumed run does it at the steps of an undisturbed one.
TEST(State, early_stopping_ends_an_interrupted_run_at_the_same_step) {
  std::optional<int64_t> signal_after;
  const auto stopping = [&](Trainer& trainer) {
    trainer.add_hook(hooks::early_stopping({.monitor = "accuracy", .patience = 1, .restore_best = true}));
    trainer.add_hook(std::make_unique<AfterStep>([&](Training& training) {
      if (training.step == signal_after) std::raise(SIGTERM);
    }));
  };
  const Result straight = run(config_in(""), {}, stopping);
  EXPECT_LT(straight.step, kSteps);
  for (const int64_t step : {4, 9, 11}) {
    const TestFolder folder;
    const RunConfig config = config_in(folder / "run");
    signal_after = step;
    EXPECT_THROW(run(config, {}, stopping), Interrupted) << step;
    signal_after.reset();
    EXPECT_EQ(run(config, {}, stopping), straight) << step;
  }
}

// The average is measured, saved and given back, and not the weights of the last step.
TEST(State, a_validation_and_the_best_weights_are_those_of_the_moving_average) {
  const TestFolder folder;
  const auto sum = [] {
    return metrics::mean(
        "sum", [](const torch::Tensor& prediction, const Batch&) { return prediction.abs().sum(1); });
  };
  RunConfig config = config_in(folder / "run");
  const Context context = test_context(config);
  Trainer trainer(context, test_net(), kAdam, test_loss, {.average = 0.5});
  trainer.add_hook(hooks::keep_best({.monitor = "sum", .goal = hooks::Goal::Smaller}));
  trainer.add_hook(hooks::early_stopping(
      {.monitor = "sum", .goal = hooks::Goal::Smaller, .patience = 1000, .restore_best = true}));
  FitOptions options = validated();
  options.validate.metrics = {sum()};
  const History history = trainer.fit(test_feed().shuffle(), options);
  double least = 1e9;
  for (const History::Row& row : history.rows)
    if (!row.validation.empty()) least = std::min(least, row.validation.at("sum"));
  EXPECT_EQ(trainer.evaluate(test_feed(32), {sum()}).at("sum"), least);
  const std::string hash = trainer.parameters().sha256();
  for (const std::string& saved : {folder / "run/best", folder / "run"}) {
    const auto net = test_net(9);
    load_weights(*net, saved);
    EXPECT_EQ(Parameters(*net).sha256(), hash) << saved;
  }
}

TEST(State, early_stopping_gives_back_the_best_weights) {
  std::string best;
  double least = 1e9;
  const auto prepare = [&](Trainer& trainer) {
    trainer.add_hook(hooks::early_stopping({.patience = 100, .restore_best = true}));
    class Watch final : public Hook {
     public:
      Watch(std::string& best, double& least) : best_(best), least_(least) {}
      void after_validation(Training& training, const std::map<std::string, double>& values) override {
        if (values.at("loss") >= least_) return;
        least_ = values.at("loss");
        best_ = training.parameters.sha256();
      }

     private:
      std::string& best_;
      double& least_;
    };
    trainer.add_hook(std::make_unique<Watch>(best, least));
  };
  const Result straight = run(config_in(""), {}, prepare);
  EXPECT_EQ(straight.hash, best);
  const TestFolder folder;
  run(config_in(folder / "run"), 38, prepare);
  EXPECT_EQ(run(config_in(folder / "run"), {}, prepare).hash, straight.hash);
}

TEST(State, a_hook_that_monitors_nothing_known_names_the_values) {
  expect_error(ErrorKind::InvalidArgument, HasSubstr("accuracy, loss"), [] {
    run(config_in(""), {},
        [](Trainer& trainer) { trainer.add_hook(hooks::early_stopping({.monitor = "acc"})); });
  });
}

TEST(State, keep_best_saves_the_weights_of_the_best_validation) {
  const TestFolder folder;
  std::map<double, int64_t> steps;
  const Result result =
      run(config_in(folder / "run"), {}, [](Trainer& trainer) { trainer.add_hook(hooks::keep_best()); });
  for (const History::Row& row : result.rows) {
    if (!row.validation.empty()) steps.emplace(row.validation.at("loss"), row.step);
  }
  const store::CheckpointDir best(folder / "run/best");
  EXPECT_THAT(best.steps(), ElementsAre(steps.begin()->second));
  EXPECT_NEAR(best.load_latest().checkpoint->state.at("best").at("loss").get<double>(), steps.begin()->first,
              1e-12);
}

// Counts its calls, and draws random numbers of LibTorch's generator outside of lanes.
class Counting final : public Hook {
 public:
  void begin_epoch(Training& training) override { epochs.emplace("begin", training.epoch); }
  void end_epoch(Training& training) override { epochs.emplace("end", training.epoch); }
  void after_step(Training&, const StepResult&) override {
    ++calls;
    drawn += torch::rand({1}).item<double>();
  }
  void after_save(Training&, const std::string& path, int64_t step) override {
    EXPECT_TRUE(std::filesystem::exists(path + "/manifest.json")) << path;
    saved.push_back(step);
  }
  std::string name() const override { return "counting"; }
  Snapshot state() const override { return {.tensors = {}, .values = {{"calls", calls}, {"drawn", drawn}}}; }
  void restore(const Snapshot& state) override {
    calls = state.values.at("calls").get<int64_t>();
    drawn = state.values.at("drawn").get<double>();
  }

  int64_t calls = 0;
  double drawn = 0;
  std::set<std::pair<std::string, int64_t>> epochs;
  std::vector<int64_t> saved;
};

TEST(State, hooks_find_again_what_they_remember) {
  const auto counts = [](const RunConfig& config, std::optional<int64_t> crash) {
    Counting* one = nullptr;
    Counting* two = nullptr;
    const Context context = test_context(config);
    Trainer trainer(context, test_net(), kAdam, test_loss);
    for (Counting** counting : {&one, &two}) {
      auto hook = std::make_unique<Counting>();
      *counting = hook.get();
      trainer.add_hook(std::move(hook));
    }
    trainer.add_hook(crash_after(crash));
    try {
      trainer.fit(test_feed().shuffle());
    } catch (const std::runtime_error&) {
    }
    if (!crash && !config.checkpoints.logdir.empty()) {
      EXPECT_EQ(one->saved.back(), kSteps);
    }
    EXPECT_NE(one->drawn, two->drawn);
    return std::tuple(one->calls, one->drawn, two->calls, two->drawn);
  };
  const auto straight = counts(config_in(""), {});
  EXPECT_EQ(std::get<0>(straight), kSteps);
  const TestFolder folder;
  counts(config_in(folder / "run"), 17);
  EXPECT_EQ(counts(config_in(folder / "run"), {}), straight);
}

TEST(State, hooks_are_told_of_epochs) {
  Counting* counting = nullptr;
  run(config_in(""), {}, [&](Trainer& trainer) {
    auto hook = std::make_unique<Counting>();
    counting = hook.get();
    trainer.add_hook(std::move(hook));
    trainer.fit(test_feed().shuffle(), {.epochs = 2});
    EXPECT_THAT(
        counting->epochs,
        ElementsAre(std::pair<std::string, int64_t>("begin", 0), std::pair<std::string, int64_t>("begin", 1),
                    std::pair<std::string, int64_t>("end", 0), std::pair<std::string, int64_t>("end", 1)));
  });
}

TEST(State, parts_of_the_program_are_saved_and_restored) {
  const TestFolder folder;
  const auto sum = [](const RunConfig& config, std::optional<int64_t> crash) {
    torch::Tensor total = torch::zeros({2}, torch::kDouble);
    run(config, crash, [&](Trainer& trainer) {
      trainer.state("total", {[&] {
                                Snapshot snapshot;
                                snapshot.tensors = {{"total", total}};
                                snapshot.values["unit"] = "steps";
                                return snapshot;
                              },
                              [&](const Snapshot& saved) {
                                EXPECT_EQ(saved.values.at("unit"), "steps");
                                total.copy_(saved.tensors.at(0).tensor);
                              }});
      trainer.add_hook(std::make_unique<AfterStep>([&](Training&) { total += 1; }));
      expect_error(ErrorKind::InvalidArgument, HasSubstr("two parts"), [&] { trainer.state("total", {}); });
      expect_error(ErrorKind::InvalidArgument, HasSubstr("'weights'"), [&] { trainer.state("weights", {}); });
    });
    return total[0].item<double>();
  };
  sum(config_in(folder / "run"), 20);
  EXPECT_EQ(sum(config_in(folder / "run"), {}), kSteps);
}

// A file has the integers first.
TEST(State, tensors_come_back_in_the_order_in_which_they_were_given) {
  const TestFolder folder;
  std::vector<std::string> found;
  const auto with_part = [&](Trainer& trainer) {
    trainer.state("mixed", {[] {
                              Snapshot snapshot;
                              snapshot.tensors = {{"z", torch::zeros({2})},
                                                  {"count", torch::zeros({}, torch::kLong)},
                                                  {"a", torch::zeros({3}, torch::kDouble)}};
                              return snapshot;
                            },
                            [&](const Snapshot& saved) {
                              for (const auto& [name, tensor] : saved.tensors) found.push_back(name);
                            }});
  };
  run(config_in(folder / "run"), 20, with_part);
  run(config_in(folder / "run"), {}, with_part);
  EXPECT_THAT(found, ElementsAre("z", "count", "a"));
}

TEST(State, keeps_numbers_that_are_not_finite) {
  const auto there_and_back = [](double number) {
    return number_of_json(parse_json(json_of_number(number).dump(), "x"), "x");
  };
  for (const double number : {0.0, 0.1, -1e300, HUGE_VAL, -HUGE_VAL})
    EXPECT_EQ(there_and_back(number), number) << number;
  EXPECT_TRUE(std::isnan(there_and_back(NAN)));
  EXPECT_TRUE(std::isnan(number_of_json(nullptr, "x"))) << "as earlier versions wrote it";
  for (const Json& value : {Json("1"), Json(true), Json::array({1})})
    expect_error(ErrorKind::DataLoss, HasSubstr("the loss should be a number"),
                 [&] { number_of_json(value, "the loss"); });
}

// The files are intact, but what is in them is not this model's.
TEST(State, that_does_not_fit_is_refused_before_the_first_step) {
  const TestFolder folder;
  RunConfig config = test_flags();
  config.checkpoints.logdir = folder / "run";
  config.training.steps = 4;
  const auto run = [&] {
    const Context context = test_context(config);
    Trainer trainer(context, test_net(), torch::optim::AdamOptions(1e-2), test_loss);
    trainer.add_hook(hooks::early_stopping({.patience = 100, .restore_best = true}));
    trainer.fit(test_feed(32), {.validate = {.feed = test_feed(8), .every_steps = 2}});
  };
  run();
  const store::CheckpointDir checkpoints(folder / "run");
  const store::Checkpoint good = *checkpoints.load_latest().checkpoint;
  config.training.steps = 8;
  const auto expect_refused = [&](const auto& change, const char* text) {
    store::Checkpoint bad = good;
    change(bad);
    store::CheckpointDir(folder / "run").save(bad);
    expect_error(ErrorKind::DataLoss, HasSubstr(text), run);
  };
  const auto best = [](store::Checkpoint& bad) -> std::vector<store::NamedTensor>& {
    return bad.more.at("hook-early_stopping");
  };
  const char* const not_theirs = "not weights of this model";
  expect_refused([&](store::Checkpoint& bad) { best(bad).pop_back(); }, not_theirs);
  expect_refused([&](store::Checkpoint& bad) { best(bad)[0].tensor = torch::zeros({}); }, not_theirs);
  expect_refused([&](store::Checkpoint& bad) { best(bad)[0].tensor = best(bad)[0].tensor.to(torch::kInt); },
                 not_theirs);
  expect_refused([](store::Checkpoint& bad) { bad.state["state"]["hook-history"].erase("rows"); },
                 "the part 'hook-history' of the checkpoint cannot be restored");
  config.checkpoints.logdir = checkpoints.logdir() + "/ckpt-4";
  expect_error(ErrorKind::InvalidArgument, HasSubstr("this is a checkpoint"), run);
}

// The mean of the weights after all steps, in which those of k steps ago have the weight decay^k.
TEST(State, a_moving_average_is_that_of_the_formula_and_is_resumed) {
  constexpr double kDecay = 0.9;
  const auto averaged = [&](const RunConfig& config, std::optional<int64_t> crash, bool check) {
    const Context context = test_context(config);
    Trainer trainer(context, test_net(), kAdam, test_loss, {.average = kDecay});
    std::vector<torch::Tensor> sums;
    double weights = 0;
    for (const auto& view : trainer.parameters().trained())
      sums.push_back(torch::zeros_like(view.tensor.detach(), torch::kDouble));
    trainer.add_hook(std::make_unique<AfterStep>([&](Training& training) {
      weights = weights * kDecay + 1;
      for (size_t i = 0; i < sums.size(); ++i)
        sums[i] = sums[i] * kDecay + training.parameters.trained()[i].tensor.detach();
    }));
    trainer.add_hook(crash_after(crash));
    try {
      trainer.fit(test_feed().shuffle());
    } catch (const std::runtime_error&) {
      return std::string();
    }
    Sha256 hash;
    const std::vector<store::NamedTensor> average = trainer.average();
    for (size_t i = 0; i < average.size(); ++i) {
      if (check) {
        EXPECT_TRUE(torch::allclose(average[i].tensor.to(torch::kDouble), sums[i] / weights, 1e-5, 1e-6))
            << average[i].name;
      }
      const torch::Tensor bits = average[i].tensor.contiguous();
      hash.update({static_cast<const std::byte*>(bits.data_ptr()), bits.nbytes()});
    }
    // It is evaluated, and the training goes on with its own weights.
    const std::string before = trainer.parameters().sha256();
    const auto of_average = trainer.measure(test_feed(32), {metrics::accuracy("label")});
    EXPECT_EQ(trainer.parameters().sha256(), before);
    const torch::Tensor first = trainer.predict(test_feed(8));
    EXPECT_FALSE(first.equal(trainer.predict(test_feed(8), {.last_weights = true})));
    EXPECT_NE(of_average,
              trainer.measure(test_feed(32), {metrics::accuracy("label")}, {.last_weights = true}))
        << "the loss at least";
    return hash.hex();
  };
  const std::string straight = averaged(config_in(""), {}, true);
  const TestFolder folder;
  averaged(config_in(folder / "run"), 22, false);
  EXPECT_EQ(averaged(config_in(folder / "run"), {}, false), straight);
}

TEST(State, a_moving_average_of_one_step_is_the_weights_after_it) {
  RunConfig config = config_in("");
  config.training.steps = 1;
  const Context context = test_context(config);
  Trainer trainer(context, test_net(), kAdam, test_loss, {.average = 0.9999});
  trainer.fit(test_feed());
  const std::vector<store::NamedTensor> average = trainer.average();
  for (size_t i = 0; i < average.size(); ++i)
    EXPECT_TRUE(average[i].tensor.equal(trainer.parameters().trained()[i].tensor)) << average[i].name;
}

// Earlier versions saved no number of steps, and gave each new value the weight 1 - decay.
TEST(State, a_moving_average_of_an_earlier_version_goes_on_as_it_did_there) {
  constexpr double kDecay = 0.9;
  const TestFolder folder;
  RunConfig config = config_in(folder / "run");
  config.training.steps = 3;
  const auto fit = [&](const auto& each_step) {
    const Context context = test_context(config);
    Trainer trainer(context, test_net(), kAdam, test_loss, {.average = kDecay});
    trainer.add_hook(std::make_unique<AfterStep>(each_step));
    trainer.fit(test_feed().shuffle());
    std::vector<torch::Tensor> average;
    for (const auto& [name, tensor] : trainer.average())
      average.push_back(tensor.to(torch::kDouble, false, true));
    return average;
  };
  std::vector<torch::Tensor> expected = fit([](Training&) {});
  const store::CheckpointDir checkpoints(folder / "run");
  store::Checkpoint earlier = *checkpoints.load_latest().checkpoint;
  earlier.state["state"].erase("average");
  store::CheckpointDir(folder / "run").save(earlier);
  config.training.steps = 6;
  const auto found = fit([&](Training& training) {
    for (size_t i = 0; i < expected.size(); ++i)
      expected[i] = expected[i] * kDecay + training.parameters.trained()[i].tensor.detach() * (1 - kDecay);
  });
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(torch::allclose(found[i], expected[i], 1e-5, 1e-6)) << i;
}

// A sharded table and one of which every worker has a copy, with an optimiser that leaves rows alone that are
// not looked up.
TEST(State, the_moving_average_of_a_sharded_table_is_that_of_a_replicated_one) {
  struct TableNet : torch::nn::Module {
    explicit TableNet(int64_t replicate_up_to)
        : ids(register_module(
              "id", nn::Embedding(90, 3, nn::EmbeddingOptions{.replicate_up_to = replicate_up_to}))) {}
    torch::Tensor forward(const torch::Tensor& id) { return ids(id).square().sum(1); }
    nn::Embedding ids;
  };
  const torch::Tensor id = torch::arange(60) % 29;
  const data::Feed feed(data::from_tensors({{"id", id}, {"y", (id % 3).to(torch::kFloat32)}}));
  const data::Feed all(data::from_tensors({{"id", torch::arange(90)}}));
  torch::manual_seed(4);
  const torch::Tensor initial = torch::randn({90, 3});
  const auto predicted = [&](int64_t replicate_up_to, bool last_weights) {
    RunConfig config = config_in("");
    config.training.steps = 11;
    const Context context = test_context(config);
    const auto net = std::make_shared<TableNet>(replicate_up_to);
    load_weights(*net, {{"id.weight", initial}}, "the test");
    Trainer trainer(context,
                    make_trainable(net,
                                   [](TableNet& of, const Batch& batch) {
                                     return torch::mse_loss(of.forward(batch["id"]), batch["y"]);
                                   },
                                   {.input = "id"}),
                    torch::optim::AdagradOptions(0.3), {.average = 0.8});
    trainer.fit(feed.shuffle());
    return trainer.predict(all, {.last_weights = last_weights});
  };
  for (const bool last_weights : {false, true})
    EXPECT_LT((predicted(0, last_weights) - predicted(1000, last_weights)).abs().max().item<double>(), 1e-5);
  EXPECT_GT((predicted(0, true) - predicted(0, false)).abs().max().item<double>(), 1e-2);
}

TEST(State, lines_about_a_moving_average_say_so) {
  const auto lines = [](double decay) {
    RunConfig config = config_in("");
    config.training.steps = 5;
    config.output.log_level = "info";
    const Context context = test_context(config);
    Trainer trainer(context, test_net(), kAdam, test_loss, {.average = decay});
    testing::internal::CaptureStderr();
    trainer.fit(test_feed().shuffle(), validated());
    trainer.evaluate(test_feed(32), {metrics::accuracy("label")});
    trainer.evaluate(test_feed(32), {metrics::accuracy("label")}, {.last_weights = true});
    return testing::internal::GetCapturedStderr();
  };
  const std::string averaged = lines(0.9);
  EXPECT_THAT(averaged, HasSubstr("validations and evaluations are of the moving average of the weights"));
  EXPECT_THAT(averaged, HasSubstr("validation of the moving average after step 5:"));
  EXPECT_THAT(averaged, HasSubstr("evaluated 32 examples with the moving average in "));
  EXPECT_THAT(averaged, HasSubstr("evaluated 32 examples in "));
  EXPECT_THAT(lines(0), testing::Not(HasSubstr("moving average")));
}

TEST(State, grown_data_are_a_difference_that_can_be_accepted) {
  const TestFolder folder;
  RunConfig config = config_in(folder / "run");
  const auto fit = [&](int64_t steps, int64_t examples) {
    config.training.steps = steps;
    const Context context = test_context(config);
    Trainer trainer(context, test_net(), kAdam, test_loss);
    trainer.fit(test_feed(examples).shuffle());
    EXPECT_EQ(trainer.step(), steps);
    return trainer.report();
  };
  EXPECT_TRUE(fit(10, 100).differences.empty());
  expect_error(ErrorKind::InvalidArgument, HasSubstr("--resume anyway"), [&] { fit(20, 120); });
  config.checkpoints.resume = "anyway";
  const store::Report report = fit(20, 120);
  ASSERT_FALSE(report.differences.empty());
  EXPECT_THAT(report.differences[0], HasSubstr("data"));
  EXPECT_EQ(report.restarts, 1);
  config.training.batch = 2;
  EXPECT_THAT(fit(25, 120).differences, ElementsAre(HasSubstr("--batch 4, not 2")));
}

Context context_of(const comm::Communicator& comm, const RunConfig& config) {
  Identity identity;
  identity.task.index = identity.membership.rank = comm.rank();
  identity.membership.world = comm.world();
  identity.is_chief = comm.rank() == 0;
  identity.source = "the test";
  return {config, identity};
}

// The two workers are threads, which share LibTorch's generator.
TEST(State, is_found_again_by_all_workers) {
  const auto averages = [](const std::string& logdir, int world, std::optional<int64_t> crash) {
    std::vector<std::shared_ptr<TestNet>> nets;
    for (int rank = 0; rank < world; ++rank) nets.push_back(test_net());
    std::vector<std::vector<store::NamedTensor>> found(static_cast<size_t>(world));
    std::vector<int64_t> validations(static_cast<size_t>(world));
    const data::Feed feed = test_feed().shuffle();
    const FitOptions options = validated();
    const auto errors =
        comm::testing::errors_of_ranks("shm", world, std::chrono::seconds(20), [&](comm::Communicator& comm) {
          const auto rank = static_cast<size_t>(comm.rank());
          RunConfig config = config_in(logdir);
          config.training.lanes = 2;
          const Context context = context_of(comm, config);
          FitOptions options_of_rank = options;
          options_of_rank.validate.metrics = {metrics::accuracy("label")};
          Trainer trainer(context, nets[rank], kAdam, test_loss,
                          {.average = 0.9, .group = comm::testing::borrowed(comm)});
          trainer.add_hook(crash_after(crash));
          const History history = trainer.fit(feed, options_of_rank);
          found[rank] = trainer.average();
          for (auto& [name, tensor] : found[rank]) tensor = tensor.clone();
          for (const History::Row& row : history.rows) validations[rank] += row.validation.empty() ? 0 : 1;
        });
    if (!crash) {
      EXPECT_THAT(errors, testing::Each(""));
      EXPECT_THAT(validations, testing::Each(8));
    }
    return found;
  };
  const auto straight = averages("", 1, {})[0];
  const TestFolder folder;
  averages(folder / "run", 2, 13);
  for (const auto& average : averages(folder / "run", 2, {})) {
    ASSERT_EQ(average.size(), straight.size());
    for (size_t i = 0; i < average.size(); ++i)
      EXPECT_TRUE(average[i].tensor.equal(straight[i].tensor)) << average[i].name;
  }
}

// Trains on the ranks of a world, each of which keeps a part of the optimiser's state; returns the hash.
std::string sharded(const std::string& logdir, int world, std::optional<int64_t> crash) {
  std::vector<std::shared_ptr<TestNet>> nets;
  for (int rank = 0; rank < world; ++rank) nets.push_back(test_net());
  const data::Feed feed = test_feed().shuffle();
  std::string hash;
  comm::testing::errors_of_ranks("shm", world, std::chrono::seconds(20), [&](comm::Communicator& comm) {
    RunConfig config = config_in(logdir);
    config.training.lanes = 4;
    const Context context = context_of(comm, config);
    Trainer trainer(context, nets[static_cast<size_t>(comm.rank())], kAdam, test_loss,
                    {.group = comm::testing::borrowed(comm)});
    trainer.add_hook(crash_after(crash));
    trainer.fit(feed);
    if (comm.rank() == 0) hash = trainer.parameters().sha256();
  });
  return hash;
}

TEST(State, of_the_optimiser_is_written_by_all_workers_and_read_by_any_number) {
  const std::string straight = sharded("", 1, {});
  ASSERT_NE(straight, "");
  for (const int world : {2, 3, 4}) {
    const TestFolder folder;
    sharded(folder / "run", world, 10);
    const std::string file = folder / "run/latest" + std::string("/optimizer-") + std::to_string(world) +
                             "of" + std::to_string(world);
    EXPECT_TRUE(std::filesystem::exists(file + ".safetensors")) << file;
    sharded(folder / "run", world == 2 ? 3 : 2, 20);
    EXPECT_EQ(sharded(folder / "run", 1, {}), straight) << world;
  }
}

}  // namespace
}  // namespace tutti::state_test

#include <filesystem>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/base/test_oracle.h"
#include "tutti/comm/test_ranks.h"
#include "tutti/metrics/metrics.h"
#include "tutti/train/evaluation_hook.h"
#include "tutti/train/hooks.h"
#include "tutti/train/loop.h"
#include "tutti/train/test_trainer.h"

// Tests hooks::evaluation() in one process, and what shows its values.
namespace tutti::evaluation_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

using Rows = std::vector<Evaluated>;
using Values = std::map<std::string, double>;

metrics::List label_accuracy() { return {metrics::accuracy("label")}; }

RunConfig evaluated_config(int64_t steps, const std::string& logdir = "") {
  RunConfig config = test_flags();
  config.training.steps = steps;
  config.checkpoints.logdir = logdir;
  config.checkpoints.every = "3";
  return config;
}

struct EndedTraining {
  std::string hash;
  torch::Tensor buffer;
  double drawn = 0;  // the program's next random number
};

EndedTraining train_evaluated(const RunConfig& config, const std::function<void(Trainer&)>& prepare,
                              const TrainerOptions& options = {}) {
  const Context context = test_context(config);
  const auto net = test_net();
  Trainer trainer(context, net, kAdam, test_loss, options);
  prepare(trainer);
  torch::manual_seed(5);
  trainer.fit(test_feed().shuffle());
  return {trainer.parameters().sha256(), net->norm->running_mean.clone(), torch::rand({1}).item<double>()};
}

std::vector<int64_t> evaluated_steps(const Rows& rows) {
  std::vector<int64_t> steps;
  for (const Evaluated& row : rows) steps.push_back(row.step);
  return steps;
}

// The net has dropout and batch norm, and the function draws numbers and writes to a buffer.
TEST(Evaluation, leaves_the_training_as_it_is) {
  for (const int64_t lanes : {1, 4}) {
    for (const double average : {0.0, 0.9}) {
      RunConfig config = evaluated_config(20);
      config.training.lanes = lanes;
      const TrainerOptions options{.average = average};
      const EndedTraining without = train_evaluated(
          config, [](Trainer&) {}, options);
      Rows rows;
      const EndedTraining with = train_evaluated(
          config,
          [&](Trainer& trainer) {
            trainer.add_hook(hooks::evaluation({.name = "test",
                                                .feed = test_feed(70),
                                                .metrics = label_accuracy(),
                                                .every_steps = 3,
                                                .at_start = true}));
            trainer.add_hook(hooks::evaluation(
                {.name = "train", .feed = test_feed(), .metrics = label_accuracy(), .every_steps = 7}));
            const auto net = std::make_shared<TestNet>();
            const auto draws = [&trainer, net] {
              EXPECT_FALSE(torch::GradMode::is_enabled());
              EXPECT_FALSE(net->is_training());
              for (const auto& view : trainer.parameters().buffers()) view.tensor.detach().add_(1);
              return Values{{"drawn", torch::rand({1}).item<double>()}};
            };
            trainer.add_hook(hooks::evaluation(
                {.name = "function", .measure = draws, .nets = {net}, .every_steps = 2, .history = &rows}));
          },
          options);
      EXPECT_EQ(with.hash, without.hash) << lanes << " " << average;
      EXPECT_TRUE(with.buffer.equal(without.buffer)) << lanes << " " << average;
      EXPECT_EQ(with.drawn, without.drawn);
      EXPECT_EQ(rows.size(), 10U);
    }
  }
}

TEST(Evaluation, is_made_at_the_steps_that_its_options_say) {
  const auto steps = [](Evaluation evaluation, int64_t last = 10) {
    Rows rows;
    evaluation.feed = test_feed(8);
    evaluation.history = &rows;
    train_evaluated(evaluated_config(last),
                    [&](Trainer& trainer) { trainer.add_hook(hooks::evaluation(evaluation)); });
    return evaluated_steps(rows);
  };
  EXPECT_THAT(steps({.every_steps = 4}), ElementsAre(4, 8, 10));
  EXPECT_THAT(steps({.every_steps = 5}), ElementsAre(5, 10));
  EXPECT_THAT(steps({.every_steps = 4, .at_end = false}), ElementsAre(4, 8));
  EXPECT_THAT(steps({.every_steps = 4, .at_start = true, .at_end = false}), ElementsAre(0, 4, 8));
  EXPECT_THAT(steps({.every_steps = 1000}), ElementsAre(10));
  EXPECT_THAT(steps({.every_steps = 0}), ElementsAre(10));
  EXPECT_THAT(steps({.every_steps = 0, .at_end = false}), ElementsAre());
  EXPECT_THAT(steps({.every_steps = 1, .at_start = true}, 1), ElementsAre(0, 1));
  // An epoch has 25 steps.
  EXPECT_THAT(steps({}, 2010), ElementsAre(1000, 2000, 2010));
  EXPECT_THAT(steps({.every_epochs = 2}, 110), ElementsAre(50, 100, 110));
}

TEST(Evaluation, has_the_values_that_the_trainer_measures) {
  const Context context = test_context(evaluated_config(9));
  Trainer trainer(context, test_net(), kAdam, test_loss, {.average = 0.8});
  Rows all;
  Rows some;
  Rows by_function;
  const auto measure = [&] { return trainer.measure(test_feed(70), label_accuracy(), {.batch = 16}); };
  const auto add = [&](const char* name, int64_t steps, Rows& rows) {
    trainer.add_hook(hooks::evaluation({.name = name,
                                        .feed = test_feed(70),
                                        .metrics = label_accuracy(),
                                        .batch = 16,
                                        .steps = steps,
                                        .every_steps = 0,
                                        .history = &rows}));
  };
  add("all", 0, all);
  add("some", 3, some);
  trainer.add_hook(hooks::evaluation(
      {.name = "by_function", .measure = measure, .every_steps = 0, .history = &by_function}));
  trainer.fit(test_feed().shuffle());
  EXPECT_EQ(all.back().values, measure());
  EXPECT_EQ(all.back().values.size(), 2U);
  EXPECT_EQ(by_function.back().values, measure()) << "of the average, although the function is called in it";
  EXPECT_EQ(some.back().values, trainer.measure(test_feed(70).take(48), label_accuracy(), {.batch = 16}));
  EXPECT_EQ(some.back().values, trainer.measure(test_feed(70), label_accuracy(), {.batch = 16, .steps = 3}));
  EXPECT_NE(some.back().values, all.back().values);
  EXPECT_EQ(trainer.measure(test_feed(70), label_accuracy(), {.batch = 16, .steps = 1000}), all.back().values)
      << "more batches than there are";
}

TEST(Evaluation, of_the_last_weights_can_be_asked_for_while_the_average_is_measured) {
  const Context context = test_context(evaluated_config(9));
  Trainer trainer(context, test_net(), kAdam, test_loss, {.average = 0.9});
  Rows rows;
  const auto measure = [&] {
    return Values{{"average", trainer.measure(test_feed(), {}).at("loss")},
                  {"last", trainer.measure(test_feed(), {}, {.last_weights = true}).at("loss")}};
  };
  trainer.add_hook(hooks::evaluation({.measure = measure, .every_steps = 0, .history = &rows}));
  trainer.fit(test_feed().shuffle());
  EXPECT_EQ(rows.back().values, measure());
  EXPECT_NE(rows.back().values.at("average"), rows.back().values.at("last"));
}

// Each has its values under its name, in the report, the history and the hooks.
TEST(Evaluation, one_of_several_does_not_replace_the_values_of_another) {
  const TestFolder folder;
  RunConfig config = evaluated_config(8, folder / "run");
  config.output.report = folder / "report.json";
  const Context context = test_context(config);
  Trainer trainer(context, test_net(), kAdam, test_loss);
  Rows train;
  trainer.add_hook(hooks::evaluation({.name = "train",
                                      .feed = test_feed(),
                                      .metrics = label_accuracy(),
                                      .every_steps = 4,
                                      .history = &train}));
  trainer.add_hook(hooks::evaluation(
      {.name = "test", .feed = test_feed(24), .metrics = label_accuracy(), .every_steps = 8}));
  trainer.add_hook(hooks::keep_best({.monitor = "test_loss", .folder = "best-test"}));
  trainer.add_hook(hooks::early_stopping({.monitor = "accuracy", .patience = 10}));
  FitOptions options;
  options.validate = {.feed = test_feed(40), .metrics = label_accuracy(), .every_steps = 4};
  const History history = trainer.fit(test_feed().shuffle(), options);
  ASSERT_EQ(history.rows.size(), 2U);
  EXPECT_EQ(history.rows[0].validation.size(), 4U);
  EXPECT_EQ(history.rows[1].validation.size(), 6U);
  const Values& last = history.rows[1].validation;
  EXPECT_EQ(last.at("train_accuracy"), train.back().values.at("accuracy"));
  const auto report = nlohmann::json::parse(read_file(config.output.report)).at("metrics");
  EXPECT_EQ(report.at("train_loss"), last.at("train_loss"));
  EXPECT_EQ(report.at("test_loss"), last.at("test_loss"));
  EXPECT_EQ(report.at("validation_loss"), last.at("loss"));
  EXPECT_TRUE(std::filesystem::exists(folder / "run/best-test/latest"));
}

TEST(Evaluation, without_a_name_is_a_validation) {
  std::vector<std::string> names;
  class Watch final : public Hook {
   public:
    explicit Watch(std::vector<std::string>& names) : names_(names) {}
    void after_validation(Training&, const Values& values) override {
      for (const auto& [name, value] : values) names_.push_back(name);
    }

   private:
    std::vector<std::string>& names_;
  };
  train_evaluated(evaluated_config(3), [&](Trainer& trainer) {
    trainer.add_hook(hooks::evaluation({.feed = test_feed(8), .metrics = label_accuracy()}));
    trainer.add_hook(std::make_unique<Watch>(names));
  });
  EXPECT_THAT(names, ElementsAre("accuracy", "loss"));
}

TEST(Evaluation, names_that_cannot_be_told_apart_are_refused) {
  const auto error = [](const std::string& what, const std::vector<Evaluation>& all,
                        const FitOptions& fit = {}) {
    expect_error(ErrorKind::InvalidArgument, HasSubstr(what), [&] {
      const Context context = test_context(evaluated_config(2));
      Trainer trainer(context, test_net(), kAdam, test_loss);
      for (Evaluation evaluation : all) {
        evaluation.feed = test_feed(8);
        trainer.add_hook(hooks::evaluation(evaluation));
      }
      trainer.fit(test_feed(), fit);
    });
  };
  error("are called 'test'", {{.name = "test"}, {.name = "train"}, {.name = "test"}});
  error("are called 'validation'", {{}, {}});
  error("are called 'validation'", {{.name = "validation"}, {}});
  FitOptions validated;
  validated.validate.feed = test_feed(8);
  error("are called 'validation'", {{}}, validated);
  validated.validate = {.feed = test_feed(8), .every_steps = -1};
  error(".every_steps and .every_epochs must be 0 or more", {}, validated);
  error("fit() for -1 steps", {}, {.steps = -1});
  error("'a/b' is not a valid name", {{.name = "a/b"}});
  error(".every_steps and .every_epochs must be 0 or more", {{.every_steps = -1}});
  error(".every_steps and .every_epochs must be 0 or more", {{.every_epochs = -1}});
  error(".steps must be 0 or more", {{.steps = -1, .every_steps = 1}});
  error(".batch must be 1 or more", {{.batch = 0, .every_steps = 1}});
  error("set either Evaluation::feed or Evaluation::measure", {{.measure = [] { return Values(); }}});
  expect_error(ErrorKind::InvalidArgument, HasSubstr("test: there is nothing to evaluate"),
               [] { hooks::evaluation({.name = "test"}); });
  const TestFolder folder;
  error("a .summary_dir of its own",
        {{.name = "a", .summary_dir = folder / "s"}, {.name = "b", .summary_dir = folder / "t/../s"}});
}

TEST(Evaluation, a_value_that_no_evaluation_has_is_refused_with_the_names_of_all) {
  expect_error(
      ErrorKind::InvalidArgument, AllOf(HasSubstr("'acc'"), HasSubstr("test_accuracy, test_loss, train_")),
      [] {
        train_evaluated(evaluated_config(4), [](Trainer& trainer) {
          trainer.add_hook(hooks::evaluation(
              {.name = "test", .feed = test_feed(8), .metrics = label_accuracy(), .every_steps = 1}));
          trainer.add_hook(hooks::evaluation(
              {.name = "train", .feed = test_feed(8), .metrics = label_accuracy(), .every_steps = 1}));
          trainer.add_hook(hooks::early_stopping({.monitor = "acc"}));
        });
      });
}

// Runs a fit with a validation and this hook, and returns the error of the names, which has to come before
// the first step.
std::string error_of_names(metrics::List list, std::unique_ptr<Hook> hook,
                           const std::string& evaluation = "") {
  const Context context = test_context(evaluated_config(4));
  Trainer trainer(context, test_net(), kAdam, test_loss);
  if (!evaluation.empty())
    trainer.add_hook(
        hooks::evaluation({.name = evaluation, .feed = test_feed(8), .metrics = label_accuracy()}));
  if (hook) trainer.add_hook(std::move(hook));
  bool has_begun = false;
  trainer.add_hook(std::make_unique<AfterStep>([&](Training&) { has_begun = true; }));
  FitOptions options;
  options.validate = {.feed = test_feed(8), .metrics = std::move(list)};
  std::string text = error_of(ErrorKind::InvalidArgument, [&] { trainer.fit(test_feed(), options); });
  EXPECT_FALSE(has_begun);
  return text;
}

TEST(Evaluation, names_that_do_not_exist_are_found_before_the_first_step) {
  const testing::Matcher<std::string> columns =
      HasSubstr("accuracy: the examples have no column 'lable', only image, label; did you mean 'label'?");
  EXPECT_THAT(error_of_names({metrics::accuracy("lable")}, nullptr), columns);
  EXPECT_THAT(error_of_names({metrics::accuracy("label", {.weights = "weight"})}, nullptr),
              HasSubstr("no column 'weight'"));
  EXPECT_THAT(
      error_of_names({}, hooks::evaluation(
                             {.name = "t", .feed = test_feed(8), .metrics = {metrics::accuracy("lable")}})),
      columns);
  EXPECT_THAT(
      error_of_names(label_accuracy(), hooks::keep_best({.monitor = "acuracy"})),
      HasSubstr("keep_best monitors 'acuracy', but the evaluations of this training have only accuracy, "
                "loss; did you mean 'accuracy'?"));
  EXPECT_THAT(error_of_names(label_accuracy(), hooks::early_stopping({.monitor = "test_acc"}), "test"),
              AllOf(HasSubstr("early_stopping monitors 'test_acc'"),
                    HasSubstr("have only accuracy, loss, test_accuracy, test_loss")));
}

TEST(Evaluation, a_value_that_a_hook_of_the_program_tells_may_be_monitored) {
  // Best at step 4, and told every second step.
  class Recall final : public Hook {
   public:
    explicit Recall(std::string name) : name_(std::move(name)) {}
    std::vector<std::string> reported() const override { return {"recall"}; }
    void after_step(Training& training, const StepResult&) override {
      if (training.step % 2 == 0)
        training.report_validation({{name_, training.step < 4 ? 0.1 : training.step == 4 ? 0.2 : 0.15}});
    }

   private:
    const std::string name_;
  };
  const auto steps_of = [](const std::string& told) {
    RunConfig config = evaluated_config(30);
    config.output.log_level = "warning";
    const Context context = test_context(config);
    Trainer trainer(context, test_net(), kAdam, test_loss);
    trainer.add_hook(std::make_unique<Recall>(told));
    trainer.add_hook(
        hooks::early_stopping({.monitor = "recall", .goal = hooks::Goal::Greater, .patience = 2}));
    FitOptions options;
    // These validations, which do not have the value, are not counted.
    options.validate = {.feed = test_feed(8), .metrics = label_accuracy(), .every_steps = 1};
    trainer.fit(test_feed(), options);
    return trainer.step();
  };
  // 6, 8 and 10 are worse. The step that follows is made before all workers have been told.
  EXPECT_EQ(steps_of("recall"), 11);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(steps_of("recal"), 30);
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      HasSubstr("early_stopping did nothing, since 'recall', which a hook is to tell, was never told"));
}

// All examples are left out, so that there is no mean.
TEST(Evaluation, a_value_that_cannot_be_determined_is_no_better_than_any) {
  const TestFolder folder;
  const Context context = test_context(evaluated_config(6, folder / "run"));
  Trainer trainer(context, test_net(), kAdam, test_loss);
  trainer.add_hook(hooks::keep_best({.monitor = "of_none"}));
  const data::Feed none(data::from_tensors({{"image", torch::rand({8, 1, 6, 6})},
                                            {"label", torch::zeros({8}, torch::kLong)},
                                            {"weight", torch::zeros({8})}}));
  const auto ones = [](const torch::Tensor&, const Batch& batch) { return torch::ones({batch.size()}); };
  trainer.fit(test_feed(), {.validate = {.feed = none,
                                         .metrics = {metrics::mean("of_none", ones, {.weights = "weight"})},
                                         .every_steps = 2}});
  EXPECT_EQ(trainer.step(), 6);
  EXPECT_TRUE(std::filesystem::exists(folder / "run/ckpt-6"));
}

TEST(Evaluation, hooks_that_are_told_no_values_say_so_at_the_end) {
  const auto said = [](bool evaluates) {
    const TestFolder folder;
    RunConfig config = evaluated_config(3, folder / "run");
    config.output.log_level = "warning";
    ::testing::internal::CaptureStderr();
    train_evaluated(config, [&](Trainer& trainer) {
      if (evaluates)
        trainer.add_hook(
            hooks::evaluation({.feed = test_feed(8), .metrics = label_accuracy(), .every_steps = 1}));
      trainer.add_hook(hooks::early_stopping({}));
      trainer.add_hook(hooks::keep_best({}));
    });
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(said(false),
              AllOf(HasSubstr("early_stopping did nothing"), HasSubstr("keep_best did nothing")));
  EXPECT_THAT(said(true), ::testing::Not(HasSubstr("did nothing")));
}

TEST(Evaluation, an_error_says_in_which_evaluation_it_was) {
  expect_error(ErrorKind::InvalidArgument, HasSubstr("held_out at step 2: the ratings are missing"), [] {
    train_evaluated(evaluated_config(4), [](Trainer& trainer) {
      trainer.add_hook(hooks::evaluation(
          {.name = "held_out",
           .measure = []() -> Values { throw Error(ErrorKind::InvalidArgument, "the ratings are missing"); },
           .every_steps = 2}));
    });
  });
}

// A function of the program may return any names.
TEST(Evaluation, a_name_that_a_function_does_not_return_is_found_with_its_first_values) {
  int64_t steps = 0;
  expect_error(ErrorKind::InvalidArgument, HasSubstr("no value 'eror', which a hook monitors"), [&] {
    train_evaluated(evaluated_config(4), [&](Trainer& trainer) {
      trainer.add_hook(hooks::evaluation({.measure = [] { return Values{{"error", 1}}; }, .every_steps = 2}));
      trainer.add_hook(hooks::early_stopping({.monitor = "eror"}));
      trainer.add_hook(std::make_unique<AfterStep>([&](Training& training) { steps = training.step; }));
    });
  });
  EXPECT_EQ(steps, 1);
}

// Returns the errors of two workers that train with this evaluation.
std::vector<std::string> errors_of_two(
    const char* transport,
    const std::function<std::unique_ptr<Hook>(const data::Feed&, int rank)>& evaluation) {
  std::vector<std::shared_ptr<TestNet>> nets = {test_net(), test_net()};
  const data::Feed feed = test_feed();
  return comm::testing::errors_of_ranks(
      transport, 2, std::chrono::seconds(60), [&](comm::Communicator& comm) {
        Identity identity;
        identity.task.index = identity.membership.rank = comm.rank();
        identity.membership.world = comm.world();
        identity.is_chief = comm.rank() == 0;
        RunConfig config = evaluated_config(6);
        config.training.lanes = 2;
        const Context context(config, identity);
        Trainer trainer(context, nets[static_cast<size_t>(comm.rank())], kAdam, test_loss,
                        {.group = comm::testing::borrowed(comm)});
        trainer.add_hook(evaluation(feed, comm.rank()));
        trainer.fit(feed);
      });
}

// All workers fail, since the chief tells them.
TEST(Evaluation, a_column_that_does_not_exist_is_told_to_all_workers) {
  const auto errors = errors_of_two("inproc", [](const data::Feed& feed, int) {
    return hooks::evaluation(
        {.name = "test", .feed = feed, .metrics = {metrics::accuracy("lable")}, .every_steps = 2});
  });
  EXPECT_THAT(errors, testing::Each(HasSubstr("no column 'lable'")));
}

// Another evaluation in between is no validation without an improvement.
TEST(Evaluation, early_stopping_waits_for_the_values_that_it_monitors) {
  int64_t count = 0;
  const auto grows = [&] { return Values{{"error", -static_cast<double>(++count)}}; };
  const auto others = [] { return Values{{"error", 1.0}}; };
  Rows rows;
  train_evaluated(evaluated_config(12), [&](Trainer& trainer) {
    trainer.add_hook(hooks::evaluation({.name = "a", .measure = grows, .every_steps = 4, .history = &rows}));
    trainer.add_hook(hooks::evaluation({.name = "b", .measure = others, .every_steps = 1}));
    trainer.add_hook(hooks::early_stopping({.monitor = "a_error", .patience = 1}));
  });
  EXPECT_THAT(evaluated_steps(rows), ElementsAre(4, 8, 12));
}

TEST(Evaluation, a_metric_may_be_used_for_several_purposes) {
  const auto rows_with = [](const metrics::MetricPtr& own, const metrics::MetricPtr& other) {
    const Context context = test_context(evaluated_config(6));
    Trainer trainer(context, test_net(), kAdam, test_loss);
    Rows rows;
    Values batch;
    class Read final : public Hook {
     public:
      Read(metrics::MetricPtr metric, Values& values) : metric_(std::move(metric)), values_(values) {}
      void after_lane(Training& training, int64_t, const Batch&, const LossOutput&) override {
        values_[std::to_string(training.step)] = metric_->value().value_or(-1);
      }

     private:
      const metrics::MetricPtr metric_;
      Values& values_;
    };
    trainer.add_hook(hooks::batch_metrics({own}, {.every = 1}));
    trainer.add_hook(std::make_unique<Read>(own, batch));
    trainer.add_hook(
        hooks::evaluation({.feed = test_feed(24), .metrics = {other}, .every_steps = 2, .history = &rows}));
    trainer.fit(test_feed());
    return std::pair(batch, rows);
  };
  const auto one = metrics::accuracy("label");
  EXPECT_EQ(rows_with(one, one), rows_with(metrics::accuracy("label"), metrics::accuracy("label")));
}

TEST(Evaluation, a_resumed_run_has_the_history_of_one_without_interruption) {
  const auto rows_of = [](const RunConfig& config, std::optional<int64_t> crash) {
    Rows rows;
    const Context context = test_context(config);
    Trainer trainer(context, test_net(), kAdam, test_loss);
    trainer.add_hook(hooks::evaluation({.name = "test",
                                        .feed = test_feed(24),
                                        .metrics = label_accuracy(),
                                        .every_steps = 2,
                                        .at_start = true,
                                        .history = &rows}));
    trainer.add_hook(std::make_unique<AfterStep>([&](Training& training) {
      if (training.step == crash) throw std::runtime_error("crash");
    }));
    try {
      trainer.fit(test_feed().shuffle());
    } catch (const std::runtime_error&) {
      if (!crash) throw;
    }
    return rows;
  };
  const Rows straight = rows_of(evaluated_config(10), {});
  EXPECT_THAT(evaluated_steps(straight), ElementsAre(0, 2, 4, 6, 8, 10));
  for (const int64_t crash : {1, 4, 5, 6, 7, 9}) {
    const TestFolder folder;
    rows_of(evaluated_config(10, folder / "run"), crash);
    EXPECT_EQ(rows_of(evaluated_config(10, folder / "run"), {}), straight) << crash;
    EXPECT_EQ(rows_of(evaluated_config(10, folder / "run"), {}), straight)
        << "run again when it was complete";
  }
}

TEST(Evaluation, is_made_by_all_workers_together_with_the_values_of_one) {
  // In the second, each of the four lanes has examples of its own, which are not equally many.
  const std::vector<data::Feed> feeds = {
      test_feed(70), test_feed(70).deal([](int64_t, int64_t) {
        return std::vector<data::ExampleRange>{{0, 5}, {5, 30}, {30, 31}, {31, 70}};
      })};
  const auto rows_at = [](int world, const data::Feed& test) {
    std::vector<Rows> all(static_cast<size_t>(world));
    std::vector<std::string> hashes(static_cast<size_t>(world));
    std::vector<std::shared_ptr<TestNet>> nets;
    for (int rank = 0; rank < world; ++rank) nets.push_back(test_net());
    const data::Feed train = test_feed().shuffle();
    const auto errors = comm::testing::errors_of_ranks(
        "inproc", world, std::chrono::seconds(60), [&](comm::Communicator& comm) {
          RunConfig config = evaluated_config(6);
          config.training.lanes = 4;
          Identity identity;
          identity.task.index = identity.membership.rank = comm.rank();
          identity.membership.world = comm.world();
          identity.is_chief = comm.rank() == 0;
          const Context context(config, identity);
          const auto rank = static_cast<size_t>(comm.rank());
          Trainer trainer(context, nets[rank], kAdam, test_loss, {.group = comm::testing::borrowed(comm)});
          trainer.add_hook(hooks::evaluation({.name = "test",
                                              .feed = test,
                                              .metrics = label_accuracy(),
                                              .batch = 9,
                                              .steps = 6,
                                              .every_steps = 2,
                                              .at_start = true,
                                              .history = &all[rank]}));
          // The values of the chief count.
          const auto own = [&] { return Values{{"rank", static_cast<double>(comm.rank())}}; };
          trainer.add_hook(hooks::evaluation({.name = "own", .measure = own, .every_steps = 3}));
          const History history = trainer.fit(train);
          for (const History::Row& row : history.rows) {
            const auto found = row.validation.find("own_rank");
            if (found != row.validation.end()) {
              EXPECT_EQ(found->second, 0);
            }
          }
          hashes[rank] = trainer.parameters().sha256();
        });
    EXPECT_THAT(errors, testing::Each("")) << world;
    for (const Rows& rows : all) EXPECT_EQ(rows, all[0]) << world;
    for (const std::string& hash : hashes) EXPECT_EQ(hash, hashes[0]);
    return all[0];
  };
  for (const data::Feed& feed : feeds) {
    const Rows alone = rows_at(1, feed);
    EXPECT_THAT(evaluated_steps(alone), ElementsAre(0, 2, 4, 6));
    for (const int world : {2, 3, 4}) EXPECT_EQ(rows_at(world, feed), alone) << world;
  }
}

TEST(Evaluation, workers_that_would_evaluate_at_other_steps_are_told_so) {
  const auto errors = errors_of_two("plain", [](const data::Feed& feed, int rank) {
    return hooks::evaluation(
        {.name = "test", .feed = feed, .metrics = label_accuracy(), .every_steps = 2 + rank});
  });
  EXPECT_THAT(errors, testing::Each(AllOf(HasSubstr("test every 2 steps"), HasSubstr("test every 3 steps"))));
}

// A loop whose steps are made as a Trainer makes them.
EndedTraining loop_evaluated(const RunConfig& config,
                             const std::function<void(Loop&, const std::shared_ptr<TestNet>&)>& prepare) {
  const Context context = test_context(config);
  const auto net = test_net();
  Parameters params(*net);
  DistributedOptimizer opt(context, params, kAdam);
  const data::Feed feed = test_feed();
  Loop loop(context, params, opt, {.steps_per_epoch = 5});
  prepare(loop, net);
  torch::manual_seed(5);
  while (loop.goes_on()) {
    const int64_t begin = loop.step() % 20 * 4;
    const Batch batch = feed.read(std::vector<int64_t>{begin, begin + 1, begin + 2, begin + 3});
    opt.zero_grad();
    opt.backward(test_loss(*net, batch).loss, 4);
    opt.step();
  }
  return {params.sha256(), net->norm->running_mean.clone(), torch::rand({1}).item<double>()};
}

TEST(Evaluation, works_in_a_loop_with_a_model_or_a_function) {
  const EndedTraining without = loop_evaluated(evaluated_config(8), [](Loop&, const auto&) {});
  Rows by_model;
  Rows by_function;
  Rows validation;
  const EndedTraining with = loop_evaluated(evaluated_config(8), [&](Loop& loop,
                                                                     const std::shared_ptr<TestNet>& net) {
    const Trainable model = make_trainable(net, test_loss);
    loop.validate_with({.feed = test_feed(24),
                        .metrics = label_accuracy(),
                        .batch = 5,
                        .model = model,
                        .every_steps = 3,
                        .at_start = true,
                        .history = &validation});
    loop.add_hook(hooks::evaluation({.name = "model",
                                     .feed = test_feed(24),
                                     .metrics = label_accuracy(),
                                     .batch = 5,
                                     .model = model,
                                     .every_steps = 3,
                                     .at_start = true,
                                     .history = &by_model}));
    loop.add_hook(hooks::evaluation(
        {.name = "function",
         .measure = [&loop,
                     model] { return loop.measure(model, test_feed(24), label_accuracy(), {.batch = 5}); },
         .every_steps = 3,
         .at_start = true,
         .history = &by_function}));
  });
  EXPECT_EQ(with.hash, without.hash);
  EXPECT_TRUE(with.buffer.equal(without.buffer));
  EXPECT_EQ(with.drawn, without.drawn);
  EXPECT_THAT(evaluated_steps(by_model), ElementsAre(0, 3, 6, 8));
  EXPECT_EQ(by_model, by_function);
  EXPECT_EQ(by_model, validation);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("Evaluation::model"), [] {
    loop_evaluated(evaluated_config(8), [](Loop& loop, const auto&) {
      loop.add_hook(
          hooks::evaluation({.feed = test_feed(24), .metrics = label_accuracy(), .every_steps = 3}));
    });
  });
}

TEST(Evaluation, in_a_loop_measures_the_average_or_the_last_weights) {
  Rows rows;
  Values afterwards;
  const Context context = test_context(evaluated_config(6));
  const auto net = test_net();
  Parameters params(*net);
  DistributedOptimizer opt(context, params, kAdam);
  Loop loop(context, params, opt, {.average = 0.9});
  const auto loss = [&](const EvaluateOptions& options) {
    return loop.measure(make_trainable(net, test_loss), test_feed(24), {}, options).at("loss");
  };
  const auto losses = [&] { return Values{{"as it is", loss({})}, {"last", loss({.last_weights = true})}}; };
  loop.validate_with({.measure = losses, .history = &rows});
  while (loop.goes_on()) {
    opt.zero_grad();
    opt.backward(test_loss(*net, test_feed(4).read(std::vector<int64_t>{0, 1, 2, 3})).loss, 4);
    opt.step();
  }
  EXPECT_EQ(loss({}), rows.back().values.at("last"));
  loop.with_average([&] { afterwards = losses(); });
  EXPECT_EQ(afterwards, rows.back().values);
  EXPECT_NE(afterwards.at("as it is"), afterwards.at("last"));
}

// --- TensorBoard

nlohmann::json shown_in(const std::string& folder) {
  const auto answer = ask_oracle("check_events.py", {folder});
  EXPECT_EQ(answer.status, 0) << answer.output;
  const size_t last = answer.output.rfind('\n', answer.output.size() - 2);
  return nlohmann::json::parse(answer.output.substr(last == std::string::npos ? 0 : last + 1), nullptr,
                               false);
}

data::Feed yes_or_no(int64_t examples) {
  const torch::Tensor x =
      torch::arange(examples, torch::kFloat32).unsqueeze(1) / static_cast<double>(examples);
  return data::Feed(data::from_tensors({{"x", x}, {"y", (x.squeeze(1) > 0.6).to(torch::kFloat32)}}));
}

struct Logistic : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return torch::sigmoid(dense(x)).squeeze(1); }
  torch::nn::Linear dense = register_module("dense", torch::nn::Linear(1, 1));
};

TEST(Evaluation, is_shown_in_tensorboard_with_its_curves_and_the_events_of_the_program) {
  TUTTI_NEEDS_ORACLES();
  const TestFolder folder;
  RunConfig config = evaluated_config(4, folder / "run");
  config.output.summary_every = 2;
  double area = 0;
  std::vector<metrics::CurvePoint> points;
  {
    const Context context = test_context(config);
    context.events().text("about", 0, "before the trainer");
    Trainer trainer(context, std::make_shared<Logistic>(), kAdam, [](Logistic& net, const Batch& batch) {
      return torch::binary_cross_entropy(net.forward(batch["x"]), batch["y"]);
    });
    const auto curve = [] {
      return metrics::auc("y", {.num_thresholds = 11, .curve = metrics::Curve::PR, .name = "area"});
    };
    trainer.add_hook(hooks::evaluation({.name = "shared",
                                        .feed = yes_or_no(50),
                                        .metrics = {curve(), metrics::average_precision("y")},
                                        .every_steps = 2}));
    trainer.add_hook(hooks::evaluation({.name = "own",
                                        .feed = yes_or_no(50),
                                        .metrics = {curve()},
                                        .every_steps = 2,
                                        .summary_dir = folder / "own"}));
    trainer.add_hook(hooks::summaries({.every = 0, .histograms_every = 4}));
    FitOptions options;
    options.validate = {.feed = yes_or_no(50), .metrics = {curve()}, .every_steps = 4};
    trainer.fit(yes_or_no(60).shuffle(), options);
    context.events().scalar("mine", 4, 0.25);
    const metrics::MetricPtr mine = curve();
    area = trainer.evaluate(yes_or_no(50), {mine}).at("area");
    points = metrics::curve_points(*mine);
    context.events().scalar("mine", 5, 0.5);
  }
  const nlohmann::json run = shown_in(folder / "run");
  const nlohmann::json& scalars = run.at("scalars");
  EXPECT_EQ(scalars.at("shared_area").size(), 2U);
  EXPECT_FALSE(scalars.contains("own_area"));
  EXPECT_EQ(scalars.at("mine"), nlohmann::json({{4, 0.25}, {5, 0.5}}));
  EXPECT_FLOAT_EQ(scalars.at("shared_area")[1][1].get<float>(), static_cast<float>(area));
  EXPECT_EQ(scalars.at("validation_area").size(), 1U);
  EXPECT_EQ(run.at("texts").at("about").size(), 1U);
  EXPECT_TRUE(run.at("histograms").contains("dense.weight"));
  for (const char* tag : {"shared_area/pr_curves", "validation_area/pr_curves", "test_area/pr_curves"}) {
    ASSERT_TRUE(run.at("pr_curves").contains(tag)) << tag;
    const nlohmann::json& shown = run.at("pr_curves").at(tag).back()[1];
    for (size_t i = 0; i < shown.at("recall").size(); ++i) {
      EXPECT_FLOAT_EQ(shown.at("recall")[i].get<float>(), static_cast<float>(points.at(i).recall()));
      EXPECT_FLOAT_EQ(shown.at("precision")[i].get<float>(), static_cast<float>(points.at(i).precision()));
      EXPECT_EQ(shown.at("false_positives")[i], static_cast<int>(points.at(i).false_positives));
    }
    EXPECT_GT(shown.at("recall").size(), 1U);
  }
  EXPECT_EQ(scalars.at("shared_average_precision").size(), 2U);
  EXPECT_FALSE(run.at("pr_curves").contains("shared_average_precision/pr_curves"))
      << "TensorBoard would show other thresholds";
  const nlohmann::json own = shown_in(folder / "own");
  EXPECT_EQ(own.at("scalars").at("area").size(), 2U);
  EXPECT_EQ(own.at("scalars").at("area"), scalars.at("shared_area")) << "under its own name";
  EXPECT_TRUE(own.at("pr_curves").contains("area/pr_curves"));
}

TEST(Evaluation, a_resumed_run_continues_the_file_of_its_own_folder) {
  TUTTI_NEEDS_ORACLES();
  const TestFolder folder;
  for (const int64_t crash : {7, 0}) {
    const Context context = test_context(evaluated_config(10, folder / "run"));
    Trainer trainer(context, test_net(), kAdam, test_loss);
    trainer.add_hook(hooks::evaluation({.feed = test_feed(24),
                                        .metrics = label_accuracy(),
                                        .every_steps = 1,
                                        .summary_dir = folder / "own"}));
    trainer.add_hook(std::make_unique<AfterStep>([&](Training& training) {
      if (training.step == crash) throw std::runtime_error("crash");
    }));
    try {
      trainer.fit(test_feed().shuffle());
    } catch (const std::runtime_error&) {
    }
  }
  const nlohmann::json own = shown_in(folder / "own");
  ASSERT_EQ(own.at("scalars").at("accuracy").size(), 10U);
  for (size_t i = 0; i < 10; ++i) EXPECT_EQ(own.at("scalars").at("accuracy")[i][0], i + 1);
}

}  // namespace
}  // namespace tutti::evaluation_test

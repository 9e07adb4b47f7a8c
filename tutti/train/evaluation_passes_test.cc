#include <gmock/gmock.h>

#include "tutti/base/test_errors.h"
#include "tutti/metrics/metrics.h"
#include "tutti/train/hooks.h"
#include "tutti/train/loop.h"
#include "tutti/train/test_trainer.h"

// Tests how many forward passes an evaluation makes, and whose predictions its metrics use.
namespace tutti::evaluation_passes_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using Values = std::map<std::string, double>;

// Counts its forward passes.
struct CountingNet : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    ++passes;
    return net->forward(x);
  }
  std::shared_ptr<TestNet> net = register_module("net", test_net());
  int64_t passes = 0;
};

LossOutput loss_and_prediction(CountingNet& net, const Batch& batch) {
  const torch::Tensor prediction = net.forward(batch["image"]);
  return {torch::cross_entropy_loss(prediction, batch["label"]), prediction};
}

torch::Tensor loss_alone(CountingNet& net, const Batch& batch) {
  return loss_and_prediction(net, batch).loss;
}

metrics::List accuracy() { return {metrics::accuracy("label")}; }

struct Measured {
  Values values;
  int64_t passes = 0;  // by batch
};

constexpr int64_t kBatches = 7;
constexpr int64_t kBatch = 10;

// Evaluates 70 examples in 7 batches, after a first evaluation.
Measured measured_by(Trainable model, const std::function<Values(Trainer&, const data::Feed&)>& evaluate) {
  RunConfig config = test_flags();
  config.training.steps = 3;
  const Context context = test_context(config);
  const auto net = std::dynamic_pointer_cast<CountingNet>(model.module);
  Trainer trainer(context, std::move(model), kAdam);
  trainer.fit(test_feed());
  trainer.measure(test_feed(4), accuracy());
  net->passes = 0;
  Values values = evaluate(trainer, test_feed(kBatches * kBatch));
  return {std::move(values), net->passes};
}

const std::vector<std::function<Values(Trainer&, const data::Feed&)>> kWays = {
    [](Trainer& trainer, const data::Feed& feed) {
      return trainer.evaluate(feed, accuracy(), {.batch = kBatch});
    },
    [](Trainer& trainer, const data::Feed& feed) {
      return trainer.measure(feed, accuracy(), {.batch = kBatch, .here = true});
    },
    [](Trainer& trainer, const data::Feed& feed) { return trainer.measure(feed, {}, {.batch = kBatch}); },
    [](Trainer& trainer, const data::Feed& feed) {
      return trainer.measure(feed, accuracy(), {.batch = kBatch, .loss = false});
    },
};

TEST(EvaluationPasses, are_one_for_each_batch_if_the_loss_function_returns_predictions) {
  for (const auto& way : kWays) {
    const Measured one =
        measured_by(make_trainable(std::make_shared<CountingNet>(), loss_and_prediction), way);
    const Measured two = measured_by(make_trainable(std::make_shared<CountingNet>(), loss_alone), way);
    EXPECT_EQ(one.values, two.values);
    EXPECT_EQ(one.passes, kBatches);
    EXPECT_EQ(two.passes, one.values.size() * kBatches);
  }
}

TEST(EvaluationPasses, of_hooks_and_validations_are_one_for_each_batch) {
  const auto evaluated = [](auto loss, bool is_validation) {
    RunConfig config = test_flags();
    config.training.steps = 3;
    const Context context = test_context(config);
    const auto net = std::make_shared<CountingNet>();
    Trainer trainer(context, net, kAdam, loss);
    std::vector<Evaluated> rows;
    FitOptions options;
    if (is_validation)
      options.validate = {.feed = test_feed(70), .metrics = accuracy(), .batch = kBatch, .every_steps = 1};
    else
      trainer.add_hook(hooks::evaluation({.feed = test_feed(70),
                                          .metrics = accuracy(),
                                          .batch = kBatch,
                                          .every_steps = 1,
                                          .history = &rows}));
    const History history = trainer.fit(test_feed(), options);
    return std::pair(history.rows.back().validation, net->passes);
  };
  for (const bool is_validation : {false, true}) {
    const auto [values, passes] = evaluated(loss_and_prediction, is_validation);
    EXPECT_EQ(passes, 3 + 3 * kBatches + 1) << "one of the first evaluation compares";
    EXPECT_EQ(evaluated(loss_alone, is_validation), std::pair(values, 3 + 2 * 3 * kBatches));
    EXPECT_EQ(values.size(), 2U);
  }
}

TEST(EvaluationPasses, of_a_loop_are_one_for_each_batch) {
  RunConfig config = test_flags();
  config.training.steps = 1;
  const Context context = test_context(config);
  const auto net = std::make_shared<CountingNet>();
  Parameters params(*net);
  DistributedOptimizer opt(context, params, kAdam);
  Loop loop(context, params, opt);
  const auto passes_of = [&](const Trainable& model) {
    const int64_t before = net->passes;
    const Values values = loop.measure(model, test_feed(70), accuracy(), {.batch = kBatch});
    return std::pair(values, net->passes - before);
  };
  const Trainable one = make_trainable(net, loss_and_prediction);
  const auto [values, with_comparison] = passes_of(one);
  EXPECT_EQ(with_comparison, kBatches + 1);
  EXPECT_EQ(passes_of(one), std::pair(values, kBatches));
  EXPECT_EQ(passes_of(make_trainable(net, loss_alone)), std::pair(values, 2 * kBatches));
}

// A program's own predict() decides, since it may do more than the loss function, as to clamp the values.
TEST(EvaluationPasses, use_the_predictions_that_the_program_has_defined) {
  const auto model_of = [](bool says_so) {
    const auto net = std::make_shared<CountingNet>();
    Trainable model = make_trainable(net, loss_and_prediction);
    model.predict = [net](const Batch& batch) { return -net->forward(batch["image"]); };
    model.loss_predicts = says_so;
    return model;
  };
  const auto way = kWays.front();
  const Measured own = measured_by(model_of(false), way);
  const Measured by_loss = measured_by(model_of(true), way);
  EXPECT_EQ(own.passes, 2 * kBatches);
  EXPECT_EQ(by_loss.passes, kBatches);
  const Measured by_forward = measured_by(make_trainable(std::make_shared<CountingNet>(), loss_alone), way);
  EXPECT_EQ(by_loss.values, by_forward.values);
  EXPECT_EQ(own.values.at("loss"), by_forward.values.at("loss"));
  EXPECT_NE(own.values.at("accuracy"), by_forward.values.at("accuracy"));
}

TEST(EvaluationPasses, need_no_predict_if_the_loss_function_returns_predictions) {
  Trainable model = make_trainable(std::make_shared<CountingNet>(), loss_and_prediction);
  model.predict = {};
  EXPECT_EQ(measured_by(model, kWays.front()).values.size(), 2U);
  for (Trainable without : {model, make_trainable(std::make_shared<CountingNet>(), loss_alone)}) {
    without.predict = {};
    const Context context = test_context(test_flags());
    Trainer trainer(context, without, kAdam);
    const bool loss = without.loss(test_feed(4).read(std::vector<int64_t>{0, 1})).prediction.defined();
    expect_error(ErrorKind::InvalidArgument,
                 AllOf(HasSubstr("no function for predictions"), HasSubstr("{loss, prediction}")),
                 [&] { trainer.evaluate(test_feed(4), accuracy(), {.loss = !loss}); });
  }
}

// Returns what two evaluations log.
std::string said_in_evaluations_of(const Trainable& model, metrics::List list = accuracy()) {
  RunConfig config = test_flags();
  config.output.log_level = "info";
  const Context context = test_context(config);
  Trainer trainer(context, model, kAdam);
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i) trainer.measure(test_feed(8), list);
  return ::testing::internal::GetCapturedStderr();
}

int64_t count_in(const std::string& text, const std::string& part) {
  int64_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(EvaluationPasses, the_log_says_once_how_to_save_one) {
  const auto net = std::make_shared<CountingNet>();
  const std::string advice = "evaluations make two forward passes";
  EXPECT_EQ(count_in(said_in_evaluations_of(make_trainable(net, loss_and_prediction)), advice), 0);
  EXPECT_EQ(count_in(said_in_evaluations_of(make_trainable(net, loss_alone), {}), advice), 0);
  const std::string said = said_in_evaluations_of(make_trainable(net, loss_alone));
  EXPECT_EQ(count_in(said, advice), 1) << said;
  EXPECT_THAT(said, AllOf(HasSubstr("return {loss, prediction} (tutti::LossOutput)\n")));
  Trainable own = make_trainable(net, loss_and_prediction);
  own.predict = [net](const Batch& batch) { return net->forward(batch["image"]); };
  EXPECT_THAT(said_in_evaluations_of(own), HasSubstr("set Trainable::loss_predicts"));
}

TEST(EvaluationPasses, the_log_warns_of_two_kinds_of_predictions) {
  const auto net = std::make_shared<CountingNet>();
  const auto other = [](CountingNet& counting, const Batch& batch) -> LossOutput {
    const LossOutput output = loss_and_prediction(counting, batch);
    return {output.loss, output.prediction.softmax(1)};
  };
  const std::string warning = "the loss function returns other predictions, float32[8,4], than";
  EXPECT_EQ(count_in(said_in_evaluations_of(make_trainable(net, other)), warning), 1);
  EXPECT_EQ(count_in(said_in_evaluations_of(make_trainable(net, loss_and_prediction)), warning), 0);
  // The same predictions in another shape.
  const auto flat = [](CountingNet& counting, const Batch& batch) -> LossOutput {
    const LossOutput output = loss_and_prediction(counting, batch);
    return {output.loss, output.prediction.unsqueeze(2)};
  };
  const auto count = metrics::mean("one", [](const torch::Tensor&, const Batch&) { return torch::ones({}); });
  EXPECT_EQ(count_in(said_in_evaluations_of(make_trainable(net, flat), {count}), warning), 0);
}

}  // namespace
}  // namespace tutti::evaluation_passes_test

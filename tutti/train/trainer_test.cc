#include "tutti/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>

#include <nlohmann/json.hpp>

#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/base/test_trace.h"
#include "tutti/comm/test_ranks.h"
#include "tutti/embedding/embedding.h"
#include "tutti/metrics/metrics.h"
#include "tutti/train/hooks.h"
#include "tutti/train/test_trainer.h"

namespace tutti::trainer_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Trainer, learns) {
  RunConfig config = test_flags();
  config.training.steps = 150;
  const Context context = test_context(config);
  Trainer trainer(context, test_net(), kAdam, test_loss);
  trainer.fit(test_feed().shuffle());
  const auto values = trainer.evaluate(test_feed(), {metrics::accuracy("label")}, {.batch = 7});
  EXPECT_GT(values.at("accuracy"), 0.95);
  EXPECT_EQ(trainer.report().metrics.at("accuracy"), values.at("accuracy"));
}

// Returns the mean cross-entropy of the predictions, by its formula.
double cross_entropy_of(const torch::Tensor& predictions, const torch::Tensor& labels) {
  const torch::Tensor rows = predictions.to(torch::kDouble);
  const torch::Tensor of_label = rows.gather(1, labels.unsqueeze(1)).squeeze(1);
  return (rows.exp().sum(1).log() - of_label).mean().item<double>();
}

// The last batch has two examples, which count as much as any others.
TEST(Trainer, evaluates_the_mean_loss_over_the_examples) {
  RunConfig config = test_flags();
  config.training.steps = 10;
  const Context context = test_context(config);
  Trainer trainer(context, test_net(), kAdam, test_loss);
  trainer.fit(test_feed().shuffle());
  const auto values = trainer.evaluate(test_feed(), {metrics::accuracy("label")}, {.batch = 7});
  const double expected = cross_entropy_of(trainer.predict(test_feed()), torch::arange(100) % 4);
  EXPECT_NEAR(values.at("loss"), expected, 1e-6);
  EXPECT_EQ(trainer.report().metrics.at("loss"), values.at("loss"));
  EXPECT_EQ(trainer.measure(test_feed(), {}, {.batch = 7}).at("loss"), values.at("loss"));
  EXPECT_EQ(trainer.measure(test_feed(), {metrics::accuracy("label")}, {.loss = false}).size(), 1U);
  const auto own = metrics::mean("loss", [](const torch::Tensor&, const Batch&) { return torch::ones(1); });
  EXPECT_EQ(trainer.evaluate(test_feed(), {own}).at("loss"), 1);
}

TEST(Trainer, a_model_without_predictions_is_evaluated_by_its_loss) {
  const Context context = test_context(test_flags());
  Trainable model = make_trainable(test_net(), test_loss);
  model.predict = {};
  Trainer trainer(context, model, kAdam);
  EXPECT_TRUE(std::isfinite(trainer.evaluate(test_feed(), {}).at("loss")));
}

// A small table is an ordinary parameter, and looks its ids up in the forward pass.
struct SmallTable : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& user) { return users(user).sum(1); }
  nn::Embedding users = register_module("users", nn::Embedding(10, 2));
};

TEST(Trainer, says_in_which_lane_and_for_which_example_the_model_fails) {
  RunConfig config = test_flags();
  config.training.steps = 3;
  config.training.batch = 4;
  config.training.lanes = 2;
  const auto fails = [&](const torch::Tensor& user, const std::string& text, bool reads_labels) {
    const auto loss = [&](SmallTable& net, const Batch& batch) {
      return reads_labels ? net.forward(batch["user"]).index_select(0, batch["user"]).sum()
                          : net.forward(batch["user"]).mean();
    };
    Trainer trainer(test_context(config),
                    make_trainable(std::make_shared<SmallTable>(), loss, {.input = "user"}), kAdam);
    const data::Feed feed(data::from_tensors({{"user", user}}));
    expect_error(ErrorKind::InvalidArgument, HasSubstr(text), [&] { trainer.fit(feed); });
  };
  torch::Tensor user = torch::zeros(24, torch::kLong);
  user[13] = 10;
  fails(user, "lane 1 of step 1, example '13': the table 'users' has 10 rows, but a lookup has the id 10",
        false);
  fails(torch::full({24}, 5), "lane 0 of step 0, whose 4 examples begin with example '0': index", true);
}

TEST(Trainer, refuses_a_negative_limit_of_the_norm) {
  const Context context = test_context(test_flags());
  expect_error(ErrorKind::InvalidArgument, HasSubstr("clip_norm is -1"),
               [&] { Trainer(context, test_net(), kAdam, test_loss, {.clip_norm = -1}); });
}

TEST(Trainer, gives_the_same_bits_twice_and_others_for_another_seed) {
  RunConfig config = test_flags();
  const std::string once = train(config, 40);
  EXPECT_EQ(train(config, 40), once);
  config.training.seed = 2;
  EXPECT_NE(train(config, 40), once);
}

TEST(Trainer, lanes_are_part_of_the_result) {
  RunConfig config = test_flags();
  config.training.lanes = 2;
  const std::string two = train(config, 20);
  config.training.lanes = 4;
  EXPECT_NE(train(config, 20), two);
}

// Example 13, which is in the batch of step 3, has a NaN. In the second training a weight is NaN from the
// beginning.
TEST(Trainer, a_loss_that_is_no_number_names_what_went_bad_first) {
  RunConfig config = test_flags();
  config.training.steps = 10;
  const Context context = test_context(config);
  torch::Tensor image = torch::rand({20, 1, 6, 6});
  image[13][0][2][2] = std::nanf("");
  const data::Feed feed(data::from_tensors({{"image", image}, {"label", torch::zeros({20}, torch::kInt64)}}));
  Trainer trainer(context, test_net(), kAdam, test_loss);
  expect_error(ErrorKind::InvalidArgument,
               AllOf(HasSubstr("step 3"), HasSubstr("'image' of the batch (1 of 144")),
               [&] { trainer.fit(feed); });
  Trainer other(test_context(config), test_net(), kAdam, test_loss);
  other.parameters().values()[5].fill_(std::nanf(""));
  expect_error(ErrorKind::InvalidArgument, HasSubstr("parameter conv.weight"),
               [&] { other.fit(test_feed()); });
}

TEST(Trainer, evaluates_and_predicts_with_the_weights_of_the_run) {
  TestFolder folder;
  RunConfig config = test_flags();
  config.checkpoints.logdir = folder / "run";
  config.checkpoints.resume = "must";
  const Context early = test_context(config);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("no checkpoint"), [&] {
    Trainer(early, test_net(), kAdam, test_loss).evaluate(test_feed(), {metrics::accuracy("label")});
  });
  config.checkpoints.resume = "auto";
  const std::string trained = train(config, 20);
  config.checkpoints.resume = "must";
  const Context context = test_context(config);
  Trainer evaluating(context, test_net(7), kAdam, test_loss);
  evaluating.evaluate(test_feed(), {metrics::accuracy("label")});
  EXPECT_EQ(evaluating.parameters().sha256(), trained);
  EXPECT_EQ(evaluating.step(), 20);
  Trainer predicting(test_context(config), test_net(7), kAdam, test_loss);
  predicting.predict(test_feed(4));
  EXPECT_EQ(predicting.parameters().sha256(), trained);
}

TEST(Trainer, a_signal_that_comes_with_the_last_step_ends_the_next_fit) {
  RunConfig config = test_flags();
  const Context context = test_context(config);
  Trainer trainer(context, test_net(), kAdam, test_loss);
  trainer.add_hook(std::make_unique<AfterStep>([](Training& training) {
    if (training.step == 3) raise(SIGTERM);
  }));
  trainer.fit(test_feed(), {.steps = 3});
  EXPECT_THROW(trainer.fit(test_feed(), {.steps = 5}), Interrupted);
  EXPECT_EQ(trainer.step(), 3);
  trainer.fit(test_feed(), {.steps = 5});
  EXPECT_EQ(trainer.step(), 8);
}

// Returns the errors that the ranks of a world, which are threads, have thrown.
std::vector<std::string> errors_of_trainers(
    const std::string& backend,
    const std::function<void(int rank, const Context&, const TrainerOptions&)>& body) {
  return comm::testing::errors_of_ranks(backend, 2, std::chrono::seconds(5), [&](comm::Communicator& comm) {
    RunConfig config = test_flags();
    config.training.lanes = 2;
    config.training.steps = 4;
    Identity identity;
    identity.task.index = identity.membership.rank = comm.rank();
    identity.membership.world = comm.world();
    identity.is_chief = comm.rank() == 0;
    TrainerOptions options;
    options.group = comm::testing::borrowed(comm);
    body(comm.rank(), Context(config, identity), options);
  });
}

TEST(Trainer, workers_with_other_feeds_or_options_are_told_what_differs) {
  for (const std::string backend : {"plain", "shm"}) {
    const std::vector<std::shared_ptr<TestNet>> nets = {test_net(), test_net()};
    const std::vector<data::Feed> feeds = {test_feed(100), test_feed(60)};
    const auto same =
        errors_of_trainers(backend, [&](int rank, const Context& context, const TrainerOptions& options) {
          Trainer(context, nets[static_cast<size_t>(rank)], kAdam, test_loss, options).fit(feeds[0]);
        });
    EXPECT_THAT(same, testing::Each(""));
    const auto of_feeds =
        errors_of_trainers(backend, [&](int rank, const Context& context, const TrainerOptions& options) {
          Trainer(context, nets[static_cast<size_t>(rank)], kAdam, test_loss, options)
              .fit(feeds[static_cast<size_t>(rank)]);
        });
    EXPECT_THAT(
        of_feeds,
        testing::Each(HasSubstr(
            "rank 0 (worker/0) has 'data: examples 100', rank 1 (worker/1) has 'data: examples 60'")));
    const auto of_steps =
        errors_of_trainers(backend, [&](int rank, const Context& context, const TrainerOptions& options) {
          Trainer(context, nets[static_cast<size_t>(rank)], kAdam, test_loss, options)
              .fit(feeds[0], {.steps = 3 + rank});
        });
    EXPECT_THAT(of_steps,
                testing::Each(HasSubstr("has '3 steps, 0 epochs', rank 1 (worker/1) has '4 steps")));
    const auto of_clipping =
        errors_of_trainers(backend, [&](int rank, const Context& context, const TrainerOptions& options) {
          TrainerOptions own = options;
          own.clip_norm = rank;
          Trainer(context, nets[static_cast<size_t>(rank)], kAdam, test_loss, own).fit(feeds[0]);
        });
    EXPECT_THAT(of_clipping,
                testing::Each(HasSubstr("has 'clip_norm 0', rank 1 (worker/1) has 'clip_norm 1'")));
  }
}

// This includes backends with shared memory, in which two models would not have the same layout.
TEST(Trainer, workers_with_other_models_are_told_the_parameter) {
  for (const std::string backend : {"plain", "shm"}) {
    const std::vector<std::shared_ptr<torch::nn::SequentialImpl>> nets = {
        std::make_shared<torch::nn::SequentialImpl>(torch::nn::Flatten(), torch::nn::Linear(36, 4)),
        std::make_shared<torch::nn::SequentialImpl>(torch::nn::Flatten(), torch::nn::Linear(36, 4000))};
    const data::Feed feed = test_feed();
    const auto errors =
        errors_of_trainers(backend, [&](int rank, const Context& context, const TrainerOptions& options) {
          Trainer(
              context, nets[static_cast<size_t>(rank)], kAdam,
              [](torch::nn::SequentialImpl& net, const Batch& batch) {
                return torch::cross_entropy_loss(net.forward(batch["image"]), batch["label"]);
              },
              options)
              .fit(feed);
        });
    EXPECT_THAT(errors, testing::Each(HasSubstr("rank 1 (worker/1) has '1.weight float32[4000,36]'")));
  }
}

TEST(Trainer, hooks_are_called_in_order) {
  class Recorder final : public Hook {
   public:
    explicit Recorder(std::string& calls) : calls_(calls) {}
    void begin(Training&) override { calls_ += "begin "; }
    void after_start(Training&) override { calls_ += "start "; }
    void before_step(Training& training) override { calls_ += std::to_string(training.step) + "< "; }
    void after_lane(Training&, int64_t lane, const Batch&, const LossOutput&) override {
      calls_ += std::to_string(lane) + " ";
    }
    void after_step(Training& training, const StepResult&) override {
      calls_ += ">" + std::to_string(training.step) + " ";
    }
    void end(Training&) override { calls_ += "end"; }
    void on_error(Training&, const std::exception& error) noexcept override { calls_ += error.what(); }

   private:
    std::string& calls_;
  };
  RunConfig config = test_flags();
  config.training.lanes = 2;
  config.training.steps = 2;
  const Context context = test_context(config);
  std::string calls;
  Trainer trainer(context, test_net(), kAdam, test_loss);
  trainer.add_hook(std::make_unique<Recorder>(calls));
  trainer.fit(test_feed());
  EXPECT_EQ(calls, "begin start 0< 0 1 >1 1< 0 1 >2 end");
  calls.clear();
  trainer.add_hook(std::make_unique<AfterStep>([](Training&) { throw std::runtime_error("oh"); }));
  EXPECT_THROW(trainer.fit(test_feed()), std::runtime_error);
  EXPECT_EQ(calls, "begin start 2< 0 1 >3 oh");
}

TEST(Trainer, a_hook_can_end_the_training) {
  RunConfig config = test_flags();
  config.training.steps = 100;
  const Context context = test_context(config);
  Trainer trainer(context, test_net(), kAdam, test_loss);
  trainer.add_hook(std::make_unique<AfterStep>([](Training& training) {
    if (training.step == 7) training.stop_reason = "enough";
  }));
  trainer.fit(test_feed());
  EXPECT_EQ(trainer.step(), 8) << "the step after the one with which the hook has said so";
}

TEST(Trainer, follows_the_schedule) {
  RunConfig config = test_flags();
  config.training.steps = 3;
  const Context context = test_context(config);
  TrainerOptions options;
  options.learning_rate = [](int64_t step) { return 0.5 + static_cast<double>(step); };
  Trainer trainer(context, test_net(), kAdam, test_loss, options);
  std::vector<double> rates;
  trainer.add_hook(std::make_unique<AfterStep>(
      [&](Training& training) { rates.push_back(training.optimizer.learning_rate()); }));
  trainer.fit(test_feed());
  EXPECT_EQ(rates, (std::vector<double>{0.5, 1.5, 2.5}));
}

TEST(Trainer, predicts_one_row_an_example_in_the_feeds_order) {
  const Context context = test_context(test_flags());
  Trainer trainer(context, test_net(), kAdam, test_loss);
  const torch::Tensor rows = trainer.predict(test_feed(23), {.batch = 5});
  ASSERT_EQ(rows.sizes(), (std::vector<int64_t>{23, 4}));
  EXPECT_TRUE(rows.narrow(0, 20, 3).allclose(trainer.predict(test_feed(23), {.batch = 23}).narrow(0, 20, 3)));
}

TEST(Trainer, an_empty_feed_is_an_error_to_train_on_and_nothing_to_evaluate) {
  const Context context = test_context(test_flags());
  Trainer trainer(context, test_net(), kAdam, test_loss);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("no examples"),
               [&] { trainer.fit(test_feed().take(0)); });
  EXPECT_TRUE(trainer.evaluate(test_feed().take(0), {metrics::accuracy("label")}).empty());
}

TEST(Trainer, a_reader_that_fails_ends_the_training_with_its_error) {
  const Context context = test_context(test_flags());
  Trainer trainer(context, test_net(), kAdam, test_loss);
  const data::Feed feed = test_feed().map([](Batch batch) -> Batch {
    if (batch["label"][0].item<int64_t>() == 3)
      fail(ErrorKind::DataLoss, "digits.idx: record 7 is cut short");
    return batch;
  });
  expect_error(ErrorKind::DataLoss, HasSubstr("digits.idx: record 7"), [&] { trainer.fit(feed.shuffle()); });
}

TEST(Trainer, says_what_a_strategy_needs_that_the_cluster_has_not) {
  RunConfig config = test_flags();
  config.training.strategy = "ps-sync";
  const Context context = test_context(config);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("has no job 'ps'"),
               [&] { Trainer(context, test_net(), kAdam, test_loss); });
}

TEST(Trainer, a_master_without_workers_says_so) {
  RunConfig config = test_flags();
  config.training.strategy = "in-graph";
  const Context context = test_context(config);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("needs workers in addition to the master"),
               [&] { Trainer(context, test_net(), kAdam, test_loss); });
}

TEST(Trainer, report_says_what_was_done) {
  TestFolder folder;
  RunConfig config = test_flags();
  config.training.steps = 6;
  config.output.report = folder / "report.json";
  const Context context = test_context(config);
  Trainer trainer(context, test_net(), kAdam, test_loss);
  trainer.fit(test_feed());
  trainer.evaluate(test_feed(), {metrics::accuracy("label")});
  std::ifstream in(config.output.report);
  const auto report = nlohmann::json::parse(in);
  EXPECT_EQ(report.at("strategy"), "single");
  EXPECT_EQ(report.at("steps"), 6);
  EXPECT_EQ(report.at("examples"), 24);
  EXPECT_EQ(report.at("weights_sha256"), trainer.parameters().sha256());
  EXPECT_TRUE(report.at("metrics").contains("accuracy"));
  EXPECT_GT(report.at("examples_per_second").get<double>(), 0);
}

TEST(Trainer, a_metric_without_a_value_is_null_in_the_report_and_has_its_reason_in_the_log) {
  TestFolder folder;
  RunConfig config = test_flags();
  config.output.log_level = "info";
  config.output.report = folder / "report.json";
  const Context context = test_context(config);
  Trainer trainer(context, test_net(), kAdam, test_loss);
  testing::internal::CaptureStderr();
  EXPECT_TRUE(trainer.evaluate(test_feed().take(0), {metrics::accuracy("label")}).empty());
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("  accuracy none (no example has a label)"));
  testing::internal::CaptureStderr();
  EXPECT_TRUE(trainer.measure(test_feed().take(0), {metrics::accuracy("label")}).empty());
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("accuracy has no value: no example has a label"));
  std::ifstream in(config.output.report);
  EXPECT_TRUE(nlohmann::json::parse(in).at("metrics").at("accuracy").is_null());
}

TEST(Trainer, profiles_the_steps_that_were_asked_for) {
  TestFolder folder;
  RunConfig config = test_flags();
  config.training.steps = 6;
  config.checkpoints.logdir = folder / "run";
  config.output.profile_steps = "2..4";
  const Context context = test_context(config);
  Trainer trainer(context, test_net(), kAdam, test_loss);
  trainer.fit(test_feed());
  const ReadTrace trace = read_trace(folder / "run/trace.json");
  expect_nested(trace);
  const auto convolutions = trace.spans_of(1, "aten::convolution");
  ASSERT_EQ(convolutions.size(), 2U);
  EXPECT_EQ(convolutions[0].category, "operator");
  EXPECT_EQ(convolutions[0].step, 2);
  EXPECT_EQ(convolutions[1].step, 3);
}

TEST(Trainer, writes_a_timeline_with_the_operators_of_the_steps_that_were_asked_for) {
  TestFolder folder;
  RunConfig config = test_flags();
  config.training.steps = 6;
  config.training.lanes = 2;
  config.output.timeline = folder / "t.json";
  config.output.profile_steps = "2..4";
  {
    const Context context = test_context(config);
    Trainer trainer(context, test_net(), kAdam, test_loss);
    trainer.fit(test_feed());
    trainer.evaluate(test_feed(), {metrics::accuracy("label")});
  }
  const ReadTrace trace = read_trace(config.output.timeline);
  expect_nested(trace);
  EXPECT_EQ(trace.spans_of(1, "step").size(), 6U);
  EXPECT_EQ(trace.spans_of(1, "forward").size(), 12U);
  EXPECT_EQ(trace.spans_of(1, "backward").size(), 12U);
  EXPECT_EQ(trace.spans_of(1, "update").size(), 6U);
  EXPECT_EQ(trace.spans_of(1, "evaluate").size(), 1U);
  EXPECT_EQ(trace.spans_of(1, "read a batch").size(), 12U + 2U);  // per lane and step; per lane
  EXPECT_EQ(trace.spans_of(1, "aten::convolution").size(), 4U);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

// Reads nothing until it is released.
class StalledSource final : public data::Source {
 public:
  explicit StalledSource(std::shared_future<void> go) : go_(std::move(go)) {}
  int64_t size() const override { return 8; }
  Batch read(std::span<const int64_t> examples) const override {
    go_.wait();
    return test_feed(8).read(examples);
  }

 private:
  const std::shared_future<void> go_;
};

TEST(Trainer, does_not_wait_longer_for_a_batch_than_it_is_told_to) {
  RunConfig config = test_flags();
  config.data.timeout = 0.05;
  const Context context = test_context(config);
  std::promise<void> go;
  const auto source = std::make_shared<StalledSource>(go.get_future().share());
  Trainer trainer(context, test_net(), kAdam, test_loss);
  expect_error(ErrorKind::Timeout, ::testing::HasSubstr("--feed-timeout"),
               [&] { trainer.fit(data::Feed(source)); });
  go.set_value();
}

TEST(Trainer, a_profile_needs_a_place) {
  RunConfig config = test_flags();
  config.output.profile_steps = "2..4";
  const Context context = test_context(config);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("--timeline FILE or --logdir"),
               [&] { Trainer(context, test_net(), kAdam, test_loss); });
}

TEST(Trainer, metrics_of_the_batches_need_predictions) {
  RunConfig config = test_flags();
  config.training.steps = 4;
  const Context context = test_context(config);
  Trainer trainer(context, test_net(), kAdam,
                  [](TestNet& net, const Batch& batch) { return test_loss(net, batch).loss; });
  trainer.add_hook(hooks::batch_metrics({metrics::accuracy("label")}, {.every = 2}));
  expect_error(ErrorKind::InvalidArgument, HasSubstr("{loss, prediction}"),
               [&] { trainer.fit(test_feed()); });
}

}  // namespace
}  // namespace tutti::trainer_test

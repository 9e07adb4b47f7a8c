#include <regex>

#include <gmock/gmock.h>

#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/comm/test_ranks.h"
#include "tutti/metrics/metrics.h"
#include "tutti/train/hooks.h"
#include "tutti/train/test_trainer.h"

// Tests hooks::batch_metrics(): the values of the batches of a training.
namespace tutti::batch_metrics_test {
namespace {

using hooks::BatchMetricsOptions;
using testing::ElementsAre;
using testing::HasSubstr;

RunConfig config_of(int64_t steps, const std::string& logdir = "") {
  RunConfig config = test_flags();
  config.training.steps = steps;
  config.training.lanes = 2;
  config.checkpoints.logdir = logdir;
  config.output.log_level = "info";
  return config;
}

// Each step has the next 8 examples; "number" is the position of an example.
data::Feed numbers() {
  const torch::Tensor number = torch::arange(96);
  return data::Feed(data::from_tensors(
      {{"image", torch::zeros({96, 1, 6, 6})}, {"label", number % 4}, {"number", number.to(torch::kFloat)}}));
}

std::unique_ptr<Hook> mean_number(const BatchMetricsOptions& options) {
  const auto number = [](const torch::Tensor&, const Batch& batch) { return batch["number"]; };
  return hooks::batch_metrics({metrics::mean("number", number)}, options);
}

// Returns the values in the log, such as "4: last 3 steps 19.5000".
std::vector<std::string> shown_in(const std::string& log) {
  std::vector<std::string> shown;
  const std::regex line(R"(step (\d+)  number \(([^)]*)\) (\S+))");
  for (auto at = std::sregex_iterator(log.begin(), log.end(), line); at != std::sregex_iterator(); ++at)
    shown.push_back((*at)[1].str() + ": " + (*at)[2].str() + " " + (*at)[3].str());
  return shown;
}

std::vector<std::string> shown_by(const RunConfig& config, const BatchMetricsOptions& options) {
  ::testing::internal::CaptureStderr();
  {
    const Context context = test_context(config);
    Trainer trainer(context, test_net(), kAdam, test_loss);
    trainer.add_hook(mean_number(options));
    trainer.fit(numbers());
  }
  return shown_in(::testing::internal::GetCapturedStderr());
}

TEST(BatchMetrics, are_those_of_single_batches_or_of_the_last_ones) {
  EXPECT_THAT(shown_by(config_of(10), {.every = 4}),
              ElementsAre("0: batch 3.5000", "4: batch 27.5000", "8: batch 59.5000", "10: batch 75.5000"));
  EXPECT_THAT(shown_by(config_of(10), {.every = 4, .window = 3}),
              ElementsAre("0: last step 3.5000", "4: last 3 steps 19.5000", "8: last 3 steps 51.5000",
                          "10: last 3 steps 67.5000"));
  EXPECT_THAT(shown_by(config_of(6), {.every = 2, .window = 3}),
              ElementsAre("0: last step 3.5000", "2: last 2 steps 7.5000", "4: last 3 steps 19.5000",
                          "6: last 3 steps 35.5000"));
  EXPECT_THAT(shown_by(config_of(4), {.every = 4, .window = 100}),
              ElementsAre("0: last step 3.5000", "4: last 4 steps 15.5000"));
  EXPECT_THAT(shown_by(config_of(4), {.every = 0, .window = 3}), ElementsAre());
}

TEST(BatchMetrics, of_a_window_include_the_batches_of_all_workers) {
  const auto alone = shown_by(config_of(10), {.every = 4, .window = 3});
  std::vector<std::shared_ptr<TestNet>> nets = {test_net(), test_net()};
  const data::Feed feed = numbers();
  ::testing::internal::CaptureStderr();
  const auto errors =
      comm::testing::errors_of_ranks("inproc", 2, std::chrono::seconds(60), [&](comm::Communicator& comm) {
        Identity identity;
        identity.task.index = identity.membership.rank = comm.rank();
        identity.membership.world = comm.world();
        identity.is_chief = comm.rank() == 0;
        const Context context(config_of(10), identity);
        Trainer trainer(context, nets[static_cast<size_t>(comm.rank())], kAdam, test_loss,
                        {.group = comm::testing::borrowed(comm)});
        trainer.add_hook(mean_number({.every = 4, .window = 3}));
        trainer.fit(feed);
      });
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(errors, testing::Each(""));
  EXPECT_EQ(shown_in(log), alone) << log;
}

TEST(BatchMetrics, of_a_window_begin_anew_when_the_run_is_resumed) {
  const TestFolder folder;
  shown_by(config_of(6, folder / "run"), {.every = 8, .window = 3});
  EXPECT_THAT(shown_by(config_of(9, folder / "run"), {.every = 8, .window = 3}),
              ElementsAre("8: last 2 steps 55.5000", "9: last 3 steps 59.5000"));
}

// The ranking of all examples of the window, not a mean over its steps.
TEST(BatchMetrics, of_a_window_are_merged_exactly) {
  const auto label = [](const data::Feed& feed) {
    return feed.map([](const Batch& batch) {
      Batch::Tensors tensors = batch.tensors();
      tensors.emplace_back("is_odd", batch["number"].remainder(2));
      return Batch(tensors);
    });
  };
  const auto loss = [](TestNet& net, const Batch& batch) -> LossOutput {
    return {test_loss(net, batch).loss, batch["number"].mul(0.37).sin()};
  };
  const auto area = metrics::auc("is_odd");
  const torch::Tensor number = torch::arange(8, 32).to(torch::kFloat);
  area->update(number.mul(0.37).sin(), Batch({{"is_odd", number.remainder(2)}}));
  ::testing::internal::CaptureStderr();
  {
    const Context context = test_context(config_of(4));
    Trainer trainer(context, test_net(), kAdam, loss);
    trainer.add_hook(hooks::batch_metrics({metrics::auc("is_odd")}, {.every = 4, .window = 3}));
    trainer.fit(label(numbers()));
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr(fmt::format("step 4  auc (last 3 steps) {:.4f}", area->value().value())));
}

TEST(BatchMetrics, refuse_a_window_without_steps) {
  for (const BatchMetricsOptions& bad : {BatchMetricsOptions{.window = 0}, BatchMetricsOptions{.every = -1}})
    expect_error(ErrorKind::InvalidArgument, HasSubstr(".window 1 or more"), [&] { mean_number(bad); });
}

// As those of a text, (B, T, V) with class numbers (B, T).
TEST(BatchMetrics, may_be_those_of_tokens) {
  const auto loss = [](TestNet& net, const Batch& batch) -> LossOutput {
    const torch::Tensor logits = torch::one_hot(batch["token"].clamp_min(0), 5).to(torch::kFloat).mul(10);
    return {test_loss(net, batch).loss, logits};
  };
  const torch::Tensor token = torch::arange(96 * 3).remainder(5).reshape({96, 3});
  token.select(1, 1).fill_(-100);
  const data::Feed feed(data::from_tensors(
      {{"image", torch::zeros({96, 1, 6, 6})}, {"label", torch::arange(96) % 4}, {"token", token}}));
  ::testing::internal::CaptureStderr();
  {
    const Context context = test_context(config_of(2));
    Trainer trainer(context, test_net(), kAdam, loss);
    trainer.add_hook(
        hooks::batch_metrics({metrics::accuracy("token"), metrics::perplexity("token")}, {.every = 2}));
    trainer.fit(feed);
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr(fmt::format("step 2  accuracy (batch) 1.0000  perplexity (batch) {:.4f}",
                                    1 + 4 * std::exp(-10.0))));
}

}  // namespace
}  // namespace tutti::batch_metrics_test

#include "tutti/train/model.h"

#include <filesystem>
#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include "tutti/base/file.h"
#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/metrics/metrics.h"
#include "tutti/nn/losses.h"
#include "tutti/nn/pipe.h"
#include "tutti/train/test_training.h"

namespace tutti::model_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Targets say whether x0 > x1; the inputs have other scales, and some values are missing.
data::Feed which_is_greater(int64_t examples, uint64_t seed) {
  torch::manual_seed(seed);
  const torch::Tensor x = torch::rand({examples, 2});
  const torch::Tensor y = (x.select(1, 0) > x.select(1, 1)).to(torch::kFloat).unsqueeze(1);
  torch::Tensor desc = x * torch::tensor({1000.F, 0.01F}) + torch::tensor({500.F, 3.F});
  torch::Tensor targ = y.clone();
  targ[0] = kNan;
  desc[1][0] = kNan;
  return data::Feed(data::from_tensors({{"desc", desc}, {"targ", targ}}));
}

struct GreaterModel : Model {
  explicit GreaterModel(const Context& context) : Model(context) {
    const auto desc = input("desc");
    const auto targ = target("targ");
    const auto logits = net(nn::WindowInput() | nn::Dense(4, torch::tanh) | nn::Dense(1), desc);
    output("pred", torch::sigmoid, logits);
    output(
        "both",
        [](const torch::Tensor& l) {
          return torch::cat({l, -l}, 1);
        },
        logits);
    loss("xent", nn::xent_uniform_mean, targ, logits);
    loss(
        "l2", [](const torch::Tensor& w) { return nn::l2_penalty(w, 1e-5); }, weights());
    metric(metrics::auc("targ"), logits);
    metric(metrics::mse("targ"), apply(torch::sigmoid, logits));
  }
};

RunConfig flags_with(int64_t steps) {
  RunConfig config = test_flags();
  config.training.lanes = 2;
  config.training.batch = 16;
  config.training.steps = steps;
  return config;
}

TEST(Model, learns_and_tells_metrics_and_losses_by_name) {
  const Context context = test_context(flags_with(300));
  GreaterModel model(context);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("fit()"), [&] { model.trainer(); });
  model.fit(which_is_greater(500, 1).shuffle(), torch::optim::AdamOptions(0.03));
  const auto found = model.evaluate(which_is_greater(300, 2));
  EXPECT_GT(found.at("auc"), 0.99);
  EXPECT_LT(found.at("mse"), 0.1);
  EXPECT_NEAR(found.at("loss"), found.at("xent") + found.at("l2"), 1e-6);
  EXPECT_GT(found.at("l2"), 0);
}

TEST(Model, predicts_with_ids_and_needs_no_targets_for_it) {
  const TestFolder folder;
  const Context context = test_context(flags_with(5));
  GreaterModel model(context);
  model.fit(which_is_greater(100, 1), torch::optim::AdamOptions(0.03));
  const data::Feed inputs(data::from_tensors({{"desc", torch::tensor({{600.F, 3.001F}, {900.F, 3.002F}})}}));
  const torch::Tensor rows = model.predict(inputs);
  ASSERT_EQ(rows.sizes(), (std::vector<int64_t>{2, 3}));
  EXPECT_TRUE(torch::allclose(rows.select(1, 0), torch::sigmoid(rows.select(1, 1))));
  EXPECT_TRUE(torch::equal(rows.select(1, 1), -rows.select(1, 2)));
  model.predict(inputs, folder / "p.tsv");
  const std::string text = read_file(folder / "p.tsv");
  EXPECT_THAT(text, StartsWith("ID\tpred\tboth 1\tboth 2\n0\t"));
  EXPECT_THAT(text,
              HasSubstr(fmt::format("\n1\t{}\t{}", rows[1][0].item<float>(), rows[1][1].item<float>())));
  model.predict(inputs, folder / "p.csv");
  EXPECT_THAT(read_file(folder / "p.csv"), StartsWith("ID,pred,both 1,both 2\n0,"));
}

// Predictions (B, T, V) and class numbers (B, T), of which some are -100.
TEST(Model, has_metrics_of_tokens) {
  constexpr int64_t kTokens = 4;
  constexpr int64_t kClasses = 3;
  torch::manual_seed(6);
  const torch::Tensor x = torch::rand({60, 5});
  torch::Tensor token = torch::randint(kClasses, {60, kTokens}, torch::kLong);
  token.masked_fill_(torch::rand({60, kTokens}) < 0.3, -100);
  const data::Feed feed(data::from_tensors({{"x", x}, {"token", token}}));
  const Context context = test_context(flags_with(20));
  Model model(context);
  const auto columns = model.net(nn::Dense(kTokens * kClasses), model.input("x"));
  const auto logits = model.apply(
      [](const torch::Tensor& c) {
        return c.reshape({-1, kTokens, kClasses});
      },
      columns);
  model.output("logits", logits);
  model.loss(
      "xent",
      [](const torch::Tensor& l, const torch::Tensor& t) {
        return torch::cross_entropy_loss(l.flatten(0, 1), t.flatten());
      },
      logits, model.target("token"));
  model.metric(metrics::accuracy("token"), logits);
  model.metric(metrics::perplexity("token"), logits);
  model.fit(feed, torch::optim::AdamOptions(0.03));
  const auto values = model.evaluate(feed);
  const torch::Tensor all = model.predict(feed).to(torch::kDouble).reshape({-1, kClasses});
  const torch::Tensor label = token.flatten();
  const torch::Tensor correct = all.argmax(1).eq(label).to(torch::kDouble);
  EXPECT_NEAR(values.at("accuracy"), (correct.sum() / label.ge(0).sum()).item<double>(), 1e-12);
  EXPECT_NEAR(values.at("perplexity"), torch::cross_entropy_loss(all, label).exp().item<double>(), 1e-12);
}

TEST(Model, keeps_the_best_of_several_starts) {
  const data::Feed feed = which_is_greater(200, 3);
  // The results of each start alone, from the same model with that seed.
  double least = std::numeric_limits<double>::infinity();
  torch::Tensor best;
  for (int64_t start = 0; start < 3; ++start) {
    RunConfig config = flags_with(4);
    config.training.seed += start;
    const Context context = test_context(config);
    GreaterModel model(context);
    model.fit(feed, torch::optim::AdamOptions(0.01));
    const double loss = model.evaluate(feed).at("loss");
    if (loss < least) best = model.predict(feed);
    least = std::min(least, loss);
  }
  const Context context = test_context(flags_with(4));
  GreaterModel model(context);
  model.fit(feed, torch::optim::AdamOptions(0.01), {.restarts = 3});
  EXPECT_EQ(model.evaluate(feed).at("loss"), least);
  EXPECT_TRUE(torch::equal(model.predict(feed), best));
}

TEST(Model, goes_on_in_the_start_in_which_it_was_interrupted) {
  const TestFolder folder;
  const data::Feed feed = which_is_greater(200, 3);
  const auto fitted = [&](const std::string& logdir) {
    RunConfig config = flags_with(20);
    config.checkpoints.logdir = logdir;
    config.checkpoints.every = "5";
    const Context context = test_context(config);
    GreaterModel model(context);
    model.fit(feed, torch::optim::AdamOptions(0.01), {.restarts = 2});
    return model.predict(feed);
  };
  const torch::Tensor whole = fitted(folder / "whole");
  EXPECT_TRUE(path_exists(folder / "whole/start-1/ckpt-20"));
  // Makes it look as if the second start had reached only step 10.
  for (const char* step : {"ckpt-20", "ckpt-15"})
    std::filesystem::remove_all(folder / (std::string("whole/start-2/") + step));
  std::filesystem::remove_all(folder / "whole/start-2/latest");
  EXPECT_TRUE(torch::equal(fitted(folder / "whole"), whole));
}

// Fits a line to points, once with a Model and once with LibTorch's L-BFGS alone.
TEST(Model, finds_with_all_examples_at_once_what_lbfgs_finds_by_itself) {
  torch::manual_seed(9);
  const torch::Tensor x = torch::rand({64, 2});
  const torch::Tensor y = x.matmul(torch::tensor({{2.F}, {-3.F}})) + 1;
  const data::Feed feed(data::from_tensors({{"x", x}, {"y", y}}));
  const auto search = torch::optim::LBFGSOptions(1).max_iter(30).line_search_fn("strong_wolfe");
  RunConfig config = flags_with(1);
  config.training.lanes = 1;
  const Context context = test_context(config);
  Model model(context);
  const auto line = model.net(nn::Dense(1), model.input("x"));
  model.output("y", line);
  model.loss("mse", nn::mse, model.target("y"), line);
  model.fit(feed, search);
  EXPECT_LT(model.evaluate(feed).at("mse"), 1e-9);
  EXPECT_TRUE(model.trainer().report().complete);
  config.training.audit = 10;
  const Context auditing = test_context(config);
  Model audited(auditing);
  audited.loss("mse", nn::mse, audited.target("y"), audited.net(nn::Dense(1), audited.input("x")));
  expect_error(ErrorKind::InvalidArgument, HasSubstr("--audit 10: a fit by L-BFGS is not audited"),
               [&] { audited.fit(feed, search); });

  torch::manual_seed(config.training.seed);
  nn::PipeNet net = nn::Dense(1).build(nn::PipeInput{2});
  torch::optim::LBFGS alone(net->parameters(), search);
  alone.step([&] {
    alone.zero_grad();
    torch::Tensor loss = nn::mse(y, net->forward(x));
    loss.backward();
    return loss;
  });
  EXPECT_TRUE(torch::allclose(model.predict(feed), net->forward(x), 1e-4, 1e-5));
}

TEST(Model, is_trained_once) {
  const Context context = test_context(flags_with(2));
  const data::Feed feed = which_is_greater(100, 1);
  GreaterModel model(context);
  model.fit(feed, torch::optim::SGDOptions(0.1), {.restarts = 2});
  expect_error(ErrorKind::InvalidArgument, HasSubstr("already been trained"),
               [&] { model.fit(feed, torch::optim::SGDOptions(0.1)); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("already been trained"), [&] { model.input("desc"); });
  GreaterModel other(context);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("another model"),
               [&] { model.output("x", other.input("desc")); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("'targ'"), [&] {
    model.evaluate(data::Feed(data::from_tensors({{"desc", torch::rand({3, 2})}})));
  });
}

TEST(Model, keeps_a_start_whose_loss_is_a_number) {
  // The first start ends with NaN weights.
  RunConfig config = flags_with(1);
  config.training.nan_guard = false;
  const Context context = test_context(config);
  const data::Feed feed = which_is_greater(100, 1);
  Model model(context);
  int losses = 0;
  const auto logits = model.net(nn::WindowInput() | nn::Dense(1), model.input("desc"));
  model.output("pred", logits);
  model.loss(
      "l",
      [&losses](const torch::Tensor& l, const torch::Tensor& t) {
        // NaN for the two lanes of the only step of the first start.
        return nn::mse(t, l * 1e-3) * (losses++ < 2 ? kNan : 1.F);
      },
      logits, model.target("targ"));
  model.fit(feed, torch::optim::SGDOptions(1e-9), {.restarts = 2});
  EXPECT_TRUE(model.predict(feed.take(1)).isfinite().all().item<bool>());
}

TEST(Model, writes_the_report_of_the_start_that_is_kept) {
  const TestFolder folder;
  RunConfig config = flags_with(4);
  config.output.report = folder / "report.json";
  const Context context = test_context(config);
  GreaterModel model(context);
  model.fit(which_is_greater(200, 3), torch::optim::AdamOptions(0.01), {.restarts = 3});
  const auto report = nlohmann::json::parse(read_file(config.output.report));
  EXPECT_EQ(report.at("weights_sha256"), model.trainer().report().weights_sha256);
  EXPECT_EQ(report.at("metrics").size(), 0);
}

TEST(Model, says_what_is_missing_or_does_not_go_together) {
  const Context context = test_context(flags_with(1));
  const Group all = connect(context);
  const data::Feed feed = which_is_greater(40, 1);
  const auto fit = [&](Model& model) {
    model.fit(feed, torch::optim::SGDOptions(0.1), {}, {.group = all.split(0)});
  };
  Model empty(context);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("has no loss"), [&] { fit(empty); });
  Model without_net(context);
  without_net.loss("l", nn::mse, without_net.target("targ"), without_net.target("targ"));
  expect_error(ErrorKind::InvalidArgument, HasSubstr("the model has no net"), [&] { fit(without_net); });
  Model wide(context);
  wide.loss("wide", wide.net(nn::Dense(2), wide.input("desc")));
  expect_error(ErrorKind::InvalidArgument, HasSubstr("the loss 'wide' has 32 numbers"), [&] { fit(wide); });
  Model misnamed(context);
  misnamed.loss("l", misnamed.net(nn::Dense(1), misnamed.input("dsc")));
  expect_error(ErrorKind::InvalidArgument, HasSubstr("'dsc'"), [&] { fit(misnamed); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("two losses or metrics are called 'l'"),
               [&] { misnamed.loss("l", misnamed.input("desc")); });
}

}  // namespace
}  // namespace tutti::model_test

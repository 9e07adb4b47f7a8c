// Tests trainings that stop at --stop-after and are continued by a later process.
#include <cmath>
#include <filesystem>
#include <set>
#include <tuple>
#include <utility>

#include <gmock/gmock.h>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/test_folder.h"
#include "tutti/comm/test_ranks.h"
#include "tutti/metrics/metrics.h"
#include "tutti/store/checkpoint.h"
#include "tutti/train/hooks.h"
#include "tutti/train/loop.h"
#include "tutti/train/test_trainer.h"

namespace tutti::stop_after_test {
namespace {

using comm::testing::with_ranks;

RunConfig config_stopping_after(int64_t step, const std::string& logdir) {
  RunConfig config = test_flags();
  config.training.steps = 40;
  config.training.stop_after = step;
  config.checkpoints.logdir = logdir;
  config.checkpoints.every = "3";
  return config;
}

// The state of a program after a fit that uses everything that has a state.
struct RunInPieces {
  int64_t step = 0;
  std::string hash;
  std::vector<History::Row> rows;
  std::map<std::string, double> average;

  bool operator==(const RunInPieces&) const = default;
};

FitOptions with_validation() {
  FitOptions options;
  options.validate.feed = test_feed(32);
  options.validate.metrics = {metrics::accuracy("label")};
  options.validate.every_steps = 5;
  return options;
}

RunInPieces train_in_piece(const RunConfig& config, store::Report* report = nullptr) {
  const Context context = test_context(config);
  Trainer trainer(context, test_net(), kAdam, test_loss,
                  {.learning_rate = schedules::cosine(1e-2, config.training.steps), .average = 0.9});
  trainer.add_hook(
      hooks::early_stopping({.monitor = "accuracy", .patience = 2, .min_delta = 0.9, .restore_best = true}));
  RunInPieces trained;
  trained.rows = trainer.fit(test_feed().shuffle(), with_validation()).rows;
  trained.step = trainer.step();
  trained.hash = trainer.parameters().sha256();
  trained.average = trainer.measure(test_feed(32), {metrics::accuracy("label")});
  if (report != nullptr) *report = trainer.report();
  return trained;
}

TEST(StopAfter, a_training_in_pieces_has_the_bits_and_the_history_of_one_in_one_piece) {
  const RunInPieces straight = train_in_piece(config_stopping_after(0, ""));
  ASSERT_LT(straight.step, 40) << "early stopping should be tested too";
  const TestFolder folder;
  for (const int64_t step : {1, 4, 4, 9, 10}) {
    store::Report report;
    const RunInPieces piece = train_in_piece(config_stopping_after(step, folder / "run"), &report);
    EXPECT_EQ(piece.step, step);
    EXPECT_FALSE(report.complete) << step;
    EXPECT_EQ(report.steps, step);
    EXPECT_EQ(*report.metrics.at("validation_accuracy"), piece.average.at("accuracy"))
        << "the report has the value of step " << step << ", also where no validation is due";
    EXPECT_EQ(report.history.size(), static_cast<size_t>(step / 5));
  }
  store::Report report;
  EXPECT_EQ(train_in_piece(config_stopping_after(0, folder / "run"), &report), straight);
  EXPECT_TRUE(report.complete);
  EXPECT_EQ(report.history.size(), straight.rows.size());
}

TEST(StopAfter, has_no_effect_on_a_training_that_ends_before) {
  const RunInPieces straight = train_in_piece(config_stopping_after(0, ""));
  for (const int64_t step : {straight.step, straight.step + 1, int64_t{40}, int64_t{1000}}) {
    store::Report report;
    EXPECT_EQ(train_in_piece(config_stopping_after(step, ""), &report), straight) << step;
    EXPECT_TRUE(report.complete) << step;
  }
}

// The process that has made the last step may have been killed before it wrote its report.
TEST(StopAfter, a_run_that_is_resumed_when_it_is_complete_has_the_values_of_its_last_step_in_the_report) {
  const auto train = [](const RunConfig& config) {
    const Context context = test_context(config);
    Trainer trainer(context, test_net(), kAdam, test_loss);
    trainer.add_hook(
        hooks::evaluation({.name = "other", .feed = test_feed(16), .metrics = {metrics::accuracy("label")}}));
    const size_t rows = trainer.fit(test_feed().shuffle(), with_validation()).rows.size();
    EXPECT_TRUE(trainer.report().complete);
    return std::pair(trainer.report().metrics, rows);
  };
  const TestFolder folder;
  const auto [metrics, rows] = train(config_stopping_after(0, folder / "run"));
  EXPECT_TRUE(metrics.at("validation_accuracy").has_value());
  EXPECT_TRUE(metrics.at("other_accuracy").has_value());
  for (const int64_t stop_after : {0, 40, 7}) {
    const auto again = train(config_stopping_after(stop_after, folder / "run"));
    EXPECT_EQ(again.first, metrics) << stop_after;
    EXPECT_EQ(again.second, rows) << "the history has no row twice";
  }
}

TEST(StopAfter, a_run_that_is_further_already_makes_no_step) {
  const TestFolder folder;
  const RunInPieces piece = train_in_piece(config_stopping_after(8, folder / "run"));
  EXPECT_EQ(train_in_piece(config_stopping_after(3, folder / "run")), piece);
  EXPECT_EQ(train_in_piece(config_stopping_after(0, folder / "run")),
            train_in_piece(config_stopping_after(0, "")));
}

TEST(StopAfter, a_hook_that_has_asked_to_end_the_fit_is_heeded_by_the_process_that_continues) {
  const auto run = [](int64_t stop_after, const std::string& logdir) {
    const Context context = test_context(config_stopping_after(stop_after, logdir));
    Trainer trainer(context, test_net(), kAdam, test_loss);
    trainer.add_hook(std::make_unique<AfterStep>([](Training& training) {
      if (training.step == 7) training.stop_reason = "enough";
    }));
    trainer.fit(test_feed().shuffle());
    return std::tuple(trainer.step(), trainer.parameters().sha256(), trainer.report().complete);
  };
  const auto straight = run(0, "");
  EXPECT_EQ(std::get<0>(straight), 8);
  for (const int64_t step : {6, 7, 8}) {
    const TestFolder folder;
    EXPECT_EQ(std::get<0>(run(step, folder / "run")), step);
    EXPECT_EQ(run(0, folder / "run"), straight) << step;
  }
}

// Makes three fits of ten steps each. Returns the steps and weights, and whether the program came to its end.
std::tuple<int64_t, std::string, bool> three_fits(const RunConfig& config) {
  const Context context = test_context(config);
  Trainer trainer(context, test_net(), kAdam, test_loss);
  const data::Feed feed = test_feed();
  const data::Feed other = test_feed(48);
  bool ended = true;
  try {
    trainer.fit(feed.shuffle(), {.steps = 10});
    trainer.fit(other.shuffle(), {.steps = 10});
    trainer.fit(feed.shuffle(), {.steps = 10});
  } catch (const Interrupted& interrupted) {
    EXPECT_EQ(interrupted.exit_code(), 0);
    EXPECT_FALSE(trainer.report().complete);
    ended = false;
  }
  return {trainer.step(), trainer.parameters().sha256(), ended};
}

TEST(StopAfter, the_fit_that_stops_returns_and_the_next_one_ends_the_program) {
  const auto straight = three_fits(config_stopping_after(0, ""));
  EXPECT_EQ(std::get<0>(straight), 30);
  for (const std::vector<int64_t>& pieces :
       std::vector<std::vector<int64_t>>{{5}, {9, 10, 11}, {10}, {10, 10, 20}, {15, 15, 20}, {1, 2, 29}}) {
    const TestFolder folder;
    for (const int64_t step : pieces) {
      const auto [made, hash, ended] = three_fits(config_stopping_after(step, folder / "run"));
      EXPECT_EQ(made, step);
      // The last fit has no next one.
      EXPECT_EQ(ended, step >= 20) << step;
    }
    EXPECT_EQ(three_fits(config_stopping_after(0, folder / "run")), straight) << pieces.front();
  }
}

TEST(StopAfter, ends_the_program_before_its_next_training) {
  const Context context = test_context(config_stopping_after(5, ""));
  const Group all = connect(context);
  Trainer trainer(context, test_net(), kAdam, test_loss, {.group = all.split(0)});
  trainer.fit(test_feed().shuffle());
  Trainer next(context, test_net(), kAdam, test_loss, {.group = all.split(0)});
  EXPECT_THROW(next.fit(test_feed().shuffle()), Interrupted);
  EXPECT_THROW(trainer.fit(test_feed().shuffle()), Interrupted);
  EXPECT_EQ(trainer.step(), 5);
  EXPECT_EQ(next.step(), 0);
}

TEST(StopAfter, counts_the_steps_of_all_workers_together) {
  const RunInPieces straight = train_in_piece(config_stopping_after(0, ""));
  for (const int world : {1, 2, 3, 4}) {
    std::vector<std::shared_ptr<TestNet>> nets;
    for (int rank = 0; rank < world; ++rank) nets.push_back(test_net());
    const data::Feed feed = test_feed();
    std::vector<std::string> hashes(static_cast<size_t>(world));
    RunConfig config = config_stopping_after(7, "");
    config.training.lanes = 4;
    with_ranks("shm", world, [&](comm::Communicator& comm) {
      const Context context = test_context(config);
      const auto rank = static_cast<size_t>(comm.rank());
      Trainer trainer(context, nets[rank], kAdam, test_loss, {.group = comm::testing::borrowed(comm)});
      trainer.fit(feed.shuffle());
      EXPECT_EQ(trainer.step(), 7) << world;
      EXPECT_FALSE(trainer.report().complete);
      hashes[rank] = trainer.parameters().sha256();
      EXPECT_THROW(trainer.fit(feed.shuffle()), Interrupted);
    });
    EXPECT_EQ(std::set<std::string>(hashes.begin(), hashes.end()).size(), 1U) << world;
  }
}

// A loop with a validation, on one rank. Returns the number of steps and the weights.
std::pair<int64_t, std::string> loop_of(comm::Communicator& comm, const RunConfig& config,
                                        History* history = nullptr) {
  const Context context = test_context(config);
  torch::nn::Linear net(3, 2);
  {
    // The ranks are threads, which would draw from the same random numbers in any order.
    const torch::NoGradGuard no_grad;
    net->weight.copy_(torch::arange(6).reshape({2, 3}) * 0.1);
    net->bias.zero_();
  }
  Parameters params(*net);
  DistributedOptimizer opt(context, params, torch::optim::AdamOptions(0.1),
                           {.group = comm::testing::borrowed(comm)});
  Loop loop(context, params, opt, {.average = 0.9});
  const auto values = [&] {
    return std::map<std::string, double>{{"sum", net->weight.sum().item<double>()}};
  };
  loop.validate_with({.measure = values, .every_steps = 4});
  while (loop.goes_on()) {
    for (int64_t lane = opt.lanes().begin; lane < opt.lanes().end; ++lane) {
      opt.zero_grad();
      opt.backward(net->forward(torch::ones({1, 3}) * static_cast<double>(lane + loop.step())).mean());
    }
    opt.step();
  }
  EXPECT_FALSE(loop.goes_on());
  if (history != nullptr) *history = loop.history();
  return {loop.step(), params.sha256()};
}

TEST(StopAfter, a_loop_in_pieces_has_the_bits_of_one_in_one_piece) {
  for (const int world : {1, 2}) {
    const TestFolder folder;
    RunConfig config = config_stopping_after(0, "");
    config.training.lanes = 2;
    config.training.steps = 17;
    History straight;
    std::pair<int64_t, std::string> expected;
    const auto on_ranks = [&](const RunConfig& of_piece, History& history) {
      std::pair<int64_t, std::string> result;
      with_ranks("inproc", world, [&](comm::Communicator& comm) {
        const bool first = comm.rank() == 0;
        const auto own = loop_of(comm, of_piece, first ? &history : nullptr);
        if (first) result = own;
      });
      return result;
    };
    expected = on_ranks(config, straight);
    config.checkpoints.logdir = folder / "run";
    History history;
    for (const int64_t step : {1, 4, 6, 6, 16}) {
      config.training.stop_after = step;
      config.training.steps = step == 6 ? 0 : 17;  // also a loop without an end
      EXPECT_EQ(on_ranks(config, history).first, step);
    }
    config.training.stop_after = 0;
    EXPECT_EQ(on_ranks(config, history), expected) << world;
    EXPECT_EQ(history.rows, straight.rows) << world;
  }
}

TEST(StopAfter, a_loop_that_is_resumed_when_it_is_complete_has_the_values_of_its_last_step_in_the_report) {
  for (const int world : {1, 2}) {
    const TestFolder folder;
    RunConfig config = config_stopping_after(0, folder / "run");
    config.training.lanes = 2;
    config.output.report = folder / "report.json";
    const auto train = [&] {
      std::filesystem::remove(config.output.report);
      with_ranks("inproc", world, [&](comm::Communicator& comm) { loop_of(comm, config); });
      return nlohmann::json::parse(read_file(config.output.report)).at("metrics").at("validation_sum");
    };
    const nlohmann::json sum = train();
    EXPECT_TRUE(sum.is_number());
    EXPECT_EQ(train(), sum) << world;
  }
}

TEST(StopAfter, the_report_says_that_the_run_continues_and_has_the_history) {
  const TestFolder folder;
  RunConfig config = config_stopping_after(12, folder / "run");
  config.output.report = folder / "report.json";
  train_in_piece(config);
  const auto report = nlohmann::json::parse(read_file(config.output.report));
  EXPECT_FALSE(report.at("complete").get<bool>());
  ASSERT_EQ(report.at("history").size(), 2U);
  EXPECT_EQ(report.at("history")[1].at("step"), 10);
  EXPECT_TRUE(report.at("history")[1].at("validation").contains("accuracy"));
  EXPECT_TRUE(report.at("history")[1].at("loss").is_number());
  const store::CheckpointDir checkpoints(folder / "run");
  EXPECT_EQ(checkpoints.steps().back(), 12);
}

TEST(StopAfter, the_report_is_complete_after_the_training_and_not_before) {
  const TestFolder folder;
  RunConfig config = test_flags();
  config.training.steps = 3;
  config.output.report = folder / "report.json";
  const Context context = test_context(config);
  Trainer trainer(context, test_net(), kAdam, test_loss);
  const auto is_complete = [&] {
    const auto report = nlohmann::json::parse(read_file(config.output.report));
    EXPECT_EQ(report.at("complete"), trainer.report().complete);
    return report.at("complete").get<bool>();
  };
  trainer.evaluate(test_feed(), {metrics::accuracy("label")});
  EXPECT_FALSE(is_complete());
  trainer.fit(test_feed().shuffle());
  EXPECT_TRUE(is_complete());
  trainer.evaluate(test_feed(), {metrics::accuracy("label")});
  EXPECT_TRUE(is_complete());
}

TEST(StopAfter, values_of_a_history_that_are_not_finite_are_null) {
  History history;
  history.rows = {{.step = 3, .epoch = 1, .loss = std::nan("")},
                  {.step = 5, .epoch = 2, .loss = {}, .validation = {{"auc", INFINITY}, {"mse", 0.5}}}};
  EXPECT_EQ(to_json(history).dump(),
            R"([{"step":3,"epoch":1,"loss":null},)"
            R"({"step":5,"epoch":2,"loss":null,"validation":{"auc":null,"mse":0.5}}])");
}

}  // namespace
}  // namespace tutti::stop_after_test

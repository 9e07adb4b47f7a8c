#include "tutti/train/evaluator.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/cluster/test_identity.h"
#include "tutti/embedding/embedding.h"
#include "tutti/metrics/metrics.h"
#include "tutti/store/manifest.h"
#include "tutti/train/hooks.h"
#include "tutti/train/load.h"
#include "tutti/train/loop.h"
#include "tutti/train/test_trainer.h"

// Tests the task that evaluates beside a training, in one process: the training has mostly ended before.
namespace tutti::evaluator_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

using Rows = std::vector<Evaluated>;
using Values = std::map<std::string, double>;

constexpr const char* kLaunch = "a launch that both tasks know";

RunConfig task_config(const std::string& logdir, int64_t steps = 10) {
  RunConfig config = test_flags();
  config.training.steps = steps;
  config.checkpoints.logdir = logdir;
  config.checkpoints.every = "3";
  config.checkpoints.keep = 0;
  return config;
}

Context worker_task(const RunConfig& config, const std::string& launch = kLaunch) {
  Identity identity;
  identity.source = "this test";
  identity.launch = launch;
  return Context(config, identity);
}

Context evaluator_task(const RunConfig& config, const std::string& launch = kLaunch) {
  Identity own = identity("", "evaluator", 0);
  own.launch = launch;
  return Context(config, own);
}

struct TaskOptions {
  double average = 0;
  int64_t fits = 1;
  std::function<void(Trainer&)> prepare = [](Trainer&) {};
};

// The program of all tasks: what it returns are the values after every third step, or of every checkpoint.
Rows run_task(const Context& context, const TaskOptions& options = {}) {
  Rows rows;
  Trainer trainer(context, test_net(context.identity().is_evaluator ? 9 : 1), kAdam, test_loss,
                  {.average = options.average});
  trainer.add_hook(hooks::evaluation({.name = "test",
                                      .feed = test_feed(40),
                                      .metrics = {metrics::accuracy("label")},
                                      .batch = 7,
                                      .every_steps = 3,
                                      .history = &rows}));
  options.prepare(trainer);
  for (int64_t fit = 0; fit < options.fits; ++fit) trainer.fit(test_feed().shuffle());
  return rows;
}

std::vector<int64_t> task_steps(const Rows& rows) {
  std::vector<int64_t> steps;
  for (const Evaluated& row : rows) steps.push_back(row.step);
  return steps;
}

nlohmann::json evaluations_record(const std::string& logdir) {
  return nlohmann::json::parse(read_file(logdir + "/evaluator/evaluations.json"));
}

std::vector<int64_t> recorded_in(const std::string& logdir) {
  std::vector<int64_t> steps;
  const nlohmann::json record = evaluations_record(logdir);
  for (const auto& each : record.at("evaluations")) steps.push_back(each.at("step").get<int64_t>());
  return steps;
}

TEST(EvaluatorTask, has_the_values_of_the_training_at_each_checkpoint) {
  for (const double average : {0.0, 0.8}) {
    const TestFolder folder;
    const RunConfig config = task_config(folder / "run");
    const Rows trained = run_task(worker_task(config), {.average = average});
    EXPECT_THAT(task_steps(trained), ElementsAre(3, 6, 9, 10));
    EXPECT_EQ(run_task(evaluator_task(config), {.average = average}), trained) << average;
    const auto record = evaluations_record(folder / "run");
    EXPECT_EQ(record.at("evaluations")[3].at("values").at("test_accuracy"), trained[3].values.at("accuracy"));
    EXPECT_THAT(recorded_in(folder / "run"), ElementsAre(3, 6, 9, 10));
  }
}

TEST(EvaluatorTask, changes_nothing_of_the_run) {
  const TestFolder folder;
  RunConfig config = task_config(folder / "run");
  config.output.report = folder / "report.json";
  run_task(worker_task(config));
  const auto files = [&] {
    std::map<std::string, std::string> all;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
      if (entry.is_regular_file() && entry.path().string().find("/evaluator/") == std::string::npos)
        all[entry.path().string()] = read_file(entry.path().string());
    }
    return all;
  };
  const auto before = files();
  run_task(evaluator_task(config));
  EXPECT_EQ(files(), before);
}

TEST(EvaluatorTask, that_is_started_again_evaluates_only_what_is_new) {
  const TestFolder folder;
  int64_t evaluations = 0;
  const TaskOptions counting{.prepare = [&](Trainer& trainer) {
    const auto count = [&] {
      ++evaluations;
      return Values{{"one", 1}};
    };
    trainer.add_hook(
        hooks::evaluation({.name = "count", .measure = count, .every_steps = 0, .at_end = false}));
  }};
  const Rows first = run_task(worker_task(task_config(folder / "run", 7)));
  EXPECT_EQ(run_task(evaluator_task(task_config(folder / "run", 7)), counting), first);
  EXPECT_EQ(evaluations, 3) << "after steps 3, 6 and 7";
  EXPECT_EQ(run_task(evaluator_task(task_config(folder / "run", 7)), counting), first) << "from its record";
  EXPECT_EQ(evaluations, 3);
  run_task(worker_task(task_config(folder / "run", 13)));
  const Rows both = run_task(evaluator_task(task_config(folder / "run", 13)), counting);
  EXPECT_THAT(task_steps(both), ElementsAre(3, 6, 7, 9, 12, 13));
  EXPECT_EQ(evaluations, 6);
  EXPECT_THAT(recorded_in(folder / "run"), ElementsAre(3, 6, 7, 9, 12, 13));
}

// The folder still has the checkpoints of the run that was abandoned, and the record.
TEST(EvaluatorTask, begins_anew_with_a_run_that_begins_anew) {
  const TestFolder folder;
  run_task(worker_task(task_config(folder / "run", 12)));
  run_task(evaluator_task(task_config(folder / "run", 12)));
  RunConfig anew = task_config(folder / "run", 5);
  anew.checkpoints.resume = "never";
  const Rows rows = run_task(worker_task(anew, "another launch"));
  EXPECT_EQ(run_task(evaluator_task(anew, "another launch")), rows);
  EXPECT_THAT(recorded_in(folder / "run"), ElementsAre(3, 5));
}

TEST(EvaluatorTask, remembers_the_best_value_and_its_weights) {
  const TestFolder folder;
  const auto kept = [&](std::vector<int64_t> lengths) {
    const std::string logdir = folder / std::to_string(lengths.size());
    for (const int64_t steps : lengths) {
      run_task(worker_task(task_config(logdir, steps)));
      run_task(evaluator_task(task_config(logdir, steps)), {.prepare = [](Trainer& trainer) {
                 trainer.add_hook(hooks::keep_best({.monitor = "test_loss"}));
                 trainer.add_hook(hooks::early_stopping({.monitor = "test_loss"}));
               }});
    }
    return nlohmann::json::parse(read_file(logdir + "/evaluator/evaluations.json"))
        .at("state")
        .at("hook-keep_best");
  };
  EXPECT_EQ(kept({6, 12}), kept({12}));
  EXPECT_TRUE(std::filesystem::exists(folder / "1/evaluator/best/latest"));
  EXPECT_TRUE(std::filesystem::exists(folder / "2/evaluator/best/latest"));
}

TEST(EvaluatorTask, evaluates_the_checkpoints_of_each_fit_in_that_fit) {
  const TestFolder folder;
  const RunConfig config = task_config(folder / "run", 4);
  std::vector<std::vector<int64_t>> steps;
  run_task(worker_task(config), {.fits = 3});
  const Context context = evaluator_task(config);
  Trainer trainer(context, test_net(), kAdam, test_loss);
  FitOptions options;
  options.validate.feed = test_feed(8);
  for (int fit = 0; fit < 3; ++fit) {
    steps.emplace_back();
    for (const History::Row& row : trainer.fit(test_feed(), options).rows) steps.back().push_back(row.step);
  }
  EXPECT_THAT(steps, ElementsAre(ElementsAre(3, 4), ElementsAre(6, 8), ElementsAre(9, 12)));
  // Later evaluations use the weights of the last checkpoint.
  EXPECT_EQ(trainer.step(), 12);
  EXPECT_TRUE(trainer.evaluate(test_feed(8), {metrics::accuracy("label")}).contains("accuracy"));
}

TEST(EvaluatorTask, skips_a_damaged_checkpoint) {
  const TestFolder folder;
  const RunConfig config = task_config(folder / "run");
  run_task(worker_task(config));
  const std::string weights = folder / "run/ckpt-6/weights.safetensors";
  std::string bytes = read_file(weights);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  std::ofstream(weights, std::ios::binary) << bytes;
  EXPECT_THAT(task_steps(run_task(evaluator_task(config))), ElementsAre(3, 9, 10));
}

TEST(EvaluatorTask, of_another_model_names_the_difference) {
  const TestFolder folder;
  const RunConfig config = task_config(folder / "run");
  run_task(worker_task(config));
  const Context context = evaluator_task(config);
  const auto net =
      std::make_shared<torch::nn::SequentialImpl>(torch::nn::Flatten(), torch::nn::Linear(36, 4));
  Trainer trainer(context, net, kAdam, [](torch::nn::SequentialImpl& model, const Batch& batch) {
    return torch::cross_entropy_loss(model.forward(batch["image"]), batch["label"]);
  });
  expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("another model"), HasSubstr("conv.weight")),
               [&] { trainer.fit(test_feed()); });
}

TEST(EvaluatorTask, needs_a_log_directory_and_has_it_alone) {
  expect_error(ErrorKind::InvalidArgument, HasSubstr("evaluator/0 needs --logdir"),
               [] { run_task(evaluator_task(task_config(""))); });
  const TestFolder folder;
  const Context context = evaluator_task(task_config(folder / "run"));
  const Evaluator first(context, folder / "run");
  expect_error(ErrorKind::InvalidArgument, HasSubstr("in use by evaluator/0"),
               [&] { Evaluator(context, folder / "run"); });
}

// A table with 500 rows, if it has any, of which 20 are trained, and a layer that needs none.
struct TableNet : torch::nn::Module {
  struct Kind {
    int64_t rows = 500;
    bool dynamic = false;
    double average = 0;  // the decay of a moving average
  };
  explicit TableNet(const Kind& kind) {
    if (kind.rows == 0) return;
    embedding::TableOptions options;
    options.replicate_up_to = 0;
    options.dynamic = kind.dynamic;
    ids = register_module("id", nn::Embedding(kind.rows, 3, options));
  }
  torch::Tensor forward(const torch::Tensor& id) {
    return dense(ids.is_empty() ? torch::ones({id.size(0), 3}) : ids(id)).squeeze(1);
  }
  nn::Embedding ids = nullptr;
  torch::nn::Linear dense = register_module("dense", torch::nn::Linear(3, 1));
};

Rows run_tables(const Context& context, const TableNet::Kind& kind) {
  Rows rows;
  const auto feed = [](const torch::Tensor& id) {
    return data::Feed(data::from_tensors({{"id", id}, {"y", (id % 2).to(torch::kFloat32)}}));
  };
  Trainer trainer(context,
                  make_trainable(std::make_shared<TableNet>(kind),
                                 [](TableNet& net, const Batch& batch) {
                                   return torch::mse_loss(net.forward(batch["id"]), batch["y"]);
                                 },
                                 {.input = "id"}),
                  torch::optim::AdagradOptions(0.1), {.average = kind.average});
  // Half of the ids are never trained.
  trainer.add_hook(hooks::evaluation({.name = "test",
                                      .feed = feed(torch::arange(40)),
                                      .metrics = {metrics::mse("y")},
                                      .every_steps = 3,
                                      .history = &rows}));
  trainer.add_hook(hooks::keep_best({.monitor = "test_mse"}));
  // A checkpoint may have changed rows only if an earlier one is on the disk.
  trainer.add_hook(std::make_unique<AfterStep>([](Training& training) {
    while (training.step > 3 && !path_exists(training.folder + "/ckpt-3"))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }));
  trainer.fit(feed(torch::arange(60) % 20).shuffle());
  return rows;
}

void expect_same_tensors(const std::string& one, const std::string& other) {
  const auto tensors = load(one);
  const auto others = load(other);
  ASSERT_EQ(tensors.size(), others.size());
  EXPECT_TRUE(tensors.contains("id.weight"));
  for (const auto& [name, tensor] : tensors) EXPECT_TRUE(tensor.equal(others.at(name))) << name;
}

TEST(EvaluatorTask, reads_the_rows_of_sharded_tables) {
  for (const bool dynamic : {false, true}) {
    for (const char* saved : {"full", "changed"}) {
      const TestFolder folder;
      RunConfig config = task_config(folder / "run");
      config.checkpoints.rows = saved;
      const Rows trained = run_tables(worker_task(config), {.dynamic = dynamic});
      EXPECT_LT(trained.back().values.at("mse"), trained.front().values.at("mse"));
      const bool has_base = store::read_folder_manifest(folder / "run/ckpt-6").base.has_value();
      EXPECT_EQ(has_base, !dynamic && saved == std::string("changed")) << "a small part of the rows changes";
      EXPECT_EQ(run_tables(evaluator_task(config), {.dynamic = dynamic}), trained) << dynamic << " " << saved;
      expect_same_tensors(folder / "run/evaluator/best", folder / "run/best");
    }
  }
}

TEST(EvaluatorTask, evaluates_the_moving_average_of_the_rows) {
  const TestFolder plain;
  const Rows last = run_tables(worker_task(task_config(plain / "run")), {});
  for (const bool dynamic : {false, true}) {
    const TestFolder folder;
    RunConfig config = task_config(folder / "run");
    config.checkpoints.rows = "changed";
    const TableNet::Kind averaged{.dynamic = dynamic, .average = 0.7};
    const Rows trained = run_tables(worker_task(config), averaged);
    EXPECT_NE(trained, last);
    EXPECT_EQ(run_tables(evaluator_task(config), averaged), trained) << dynamic;
    expect_same_tensors(folder / "run/evaluator/best", folder / "run/best");
  }
}

TEST(EvaluatorTask, says_which_rows_the_checkpoint_does_not_have) {
  const TestFolder folder;
  run_tables(worker_task(task_config(folder / "dense")), {.rows = 0});
  expect_error(ErrorKind::InvalidArgument,
               HasSubstr("the checkpoint of step 3 has no rows of sharded tables"),
               [&] { run_tables(evaluator_task(task_config(folder / "dense")), {}); });
  run_tables(worker_task(task_config(folder / "tables")), {});
  expect_error(ErrorKind::InvalidArgument, HasSubstr("has 500 rows of 3, but in the model it has 400 of 3"),
               [&] { run_tables(evaluator_task(task_config(folder / "tables")), {.rows = 400}); });
}

TEST(EvaluatorTask, follows_a_loop_too) {
  const TestFolder folder;
  const auto rows_of = [&](const Context& context) {
    Rows rows;
    int64_t made = 0;
    const auto net = test_net(context.identity().is_evaluator ? 9 : 1);
    Parameters params(*net);
    DistributedOptimizer opt(context, params, kAdam);
    Loop loop(context, params, opt, {.average = 0.7});
    loop.add_hook(hooks::evaluation({.feed = test_feed(24),
                                     .metrics = {metrics::accuracy("label")},
                                     .model = make_trainable(net, test_loss),
                                     .every_steps = 3,
                                     .history = &rows}));
    const data::Feed feed = test_feed();
    while (loop.goes_on()) {
      opt.zero_grad();
      opt.backward(test_loss(*net, feed.read(std::vector<int64_t>{made % 100, 1, 2})).loss, 3);
      opt.step();
      ++made;
    }
    EXPECT_EQ(made, context.identity().is_evaluator ? 0 : 10);
    return rows;
  };
  const RunConfig config = task_config(folder / "run");
  const Rows trained = rows_of(worker_task(config));
  EXPECT_EQ(rows_of(evaluator_task(config)), trained);
  EXPECT_EQ(trained.size(), 4U);
}

TEST(EvaluatorTask, does_not_train) {
  const Context context = evaluator_task(task_config(""));
  const auto net = test_net();
  Parameters params(*net);
  DistributedOptimizer opt(context, params, kAdam);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("is an evaluator, which does not train"), [&] {
    opt.zero_grad();
    opt.step();
  });
}

// --- What it waits for

RunConfig impatient(const std::string& logdir) {
  RunConfig config = task_config(logdir);
  config.network.start_timeout = 0.2;
  return config;
}

TEST(EvaluatorTask, gives_up_if_nobody_trains) {
  const TestFolder folder;
  expect_error(ErrorKind::Timeout, HasSubstr("nobody has begun to train in " + folder / "none"),
               [&] { run_task(evaluator_task(impatient(folder / "none"))); });
  // A run that somebody has left.
  write_run_state((std::filesystem::create_directory(folder / "left"), folder / "left"),
                  {.id = "a", .fit = 0, .step = 4, .launch = "", .chief = "worker/0 on host a"});
  expect_error(ErrorKind::Timeout, AllOf(HasSubstr("step 4 was the last"), HasSubstr("worker/0 on host a")),
               [&] { run_task(evaluator_task(impatient(folder / "left"), "")); });
  expect_error(ErrorKind::Timeout, HasSubstr("nobody has begun"),
               [&] { run_task(evaluator_task(impatient(folder / "left"), "another launch")); });
}

TEST(EvaluatorTask, that_does_not_know_its_launch_believes_an_old_state_when_no_job_begins) {
  const TestFolder folder;
  const Rows trained = run_task(worker_task(task_config(folder / "run"), ""));
  EXPECT_EQ(run_task(evaluator_task(impatient(folder / "run"), "")), trained);
}

TEST(EvaluatorTask, reports_a_state_that_it_cannot_read) {
  const TestFolder folder;
  for (const char* text : {"", "{", "[]", R"({"id": 7})", R"({"id": "a", "phase": "sleeping"})"}) {
    folder.write("run.json", text);
    expect_error(ErrorKind::DataLoss, HasSubstr("run.json"),
                 [&] { run_task(evaluator_task(impatient(folder.path()))); });
  }
}

const StopSignals& no_signals() {
  static const StopSignals kNone{RunConfig()};
  return kNone;
}

TEST(EvaluatorTask, waits_for_as_long_as_somebody_holds_the_lock) {
  const TestFolder folder;
  const Context context = evaluator_task(impatient(folder.path()), "");
  const store::FolderLock lock(folder.path(), "worker/0", std::chrono::milliseconds(0));
  Evaluator waiting(context, folder.path());
  write_run_state(folder.path(), {.id = "a", .launch = "", .chief = ""});
  auto result = std::async(std::launch::async, [&] { return waiting.next(0, no_signals()); });
  // Several times the time after which it gives up.
  std::this_thread::sleep_for(std::chrono::seconds(1));
  write_run_state(folder.path(), {.id = "a", .phase = RunState::Phase::Complete, .launch = "", .chief = ""});
  EXPECT_FALSE(result.get().has_value());
}

TEST(EvaluatorTask, does_not_take_an_old_state_for_that_of_a_job_that_has_just_taken_the_lock) {
  const TestFolder folder;
  write_run_state(folder.path(),
                  {.id = "old", .phase = RunState::Phase::Complete, .launch = "", .chief = "worker/0, then"});
  const Context context = evaluator_task(task_config(folder.path()), "");
  const store::FolderLock lock(folder.path(), "worker/0, now", std::chrono::milliseconds(0));
  Evaluator waiting(context, folder.path());
  auto result = std::async(std::launch::async, [&] { return waiting.next(0, no_signals()); });
  // Several times as long as between two looks.
  EXPECT_EQ(result.wait_for(std::chrono::seconds(1)), std::future_status::timeout);
  write_run_state(folder.path(),
                  {.id = "new", .phase = RunState::Phase::Complete, .launch = "", .chief = "worker/0, now"});
  EXPECT_FALSE(result.get().has_value());
  EXPECT_EQ(waiting.run_id(), "new");
}

TEST(EvaluatorTask, ends_after_a_signal) {
  const TestFolder folder;
  const Context context = evaluator_task(task_config(folder.path()));
  Evaluator waiting(context, folder.path());
  const StopSignals signals(task_config(""));
  std::raise(SIGTERM);
  EXPECT_THROW(waiting.next(0, signals), Interrupted);
}

// The training removes each checkpoint as soon as it has saved another.
TEST(EvaluatorTask, goes_on_with_the_newest_if_a_checkpoint_is_removed_while_it_is_read) {
  const TestFolder folder;
  constexpr int64_t kLast = 300;
  const Context context = evaluator_task(task_config(folder.path()), "");
  Evaluator following(context, folder.path());
  std::thread training([&] {
    store::CheckpointDir checkpoints(folder.path(), {.keep = 1});
    write_run_state(folder.path(), {.id = "a", .launch = "", .chief = ""});
    store::Checkpoint checkpoint;
    checkpoint.weights = {{"w", torch::ones({50000})}};
    for (checkpoint.step = 1; checkpoint.step <= kLast; ++checkpoint.step) checkpoints.save(checkpoint);
    write_run_state(folder.path(),
                    {.id = "a", .phase = RunState::Phase::Complete, .launch = "", .chief = ""});
  });
  int64_t last = 0;
  while (const auto found = following.next(0, no_signals())) {
    const store::Checkpoint& checkpoint = found->checkpoint;
    EXPECT_GT(checkpoint.step, last);
    EXPECT_EQ(checkpoint.weights.at(0).tensor.sum().item<double>(), 50000);
    last = checkpoint.step;
  }
  training.join();
  EXPECT_EQ(last, kLast);
}

// --- What the chief says

RunState run_state_in(const std::string& logdir) { return read_run_state(logdir).value(); }

TEST(RunStates, tell_how_far_the_run_is) {
  const TestFolder folder;
  EXPECT_EQ(read_run_state(folder / "run"), std::nullopt);
  int64_t seen = 0;
  run_task(worker_task(task_config(folder / "run", 4)), {.prepare = [&](Trainer& trainer) {
             trainer.add_hook(std::make_unique<AfterStep>([&](Training& training) {
               EXPECT_EQ(run_state_in(training.folder).phase, RunState::Phase::Training);
               ++seen;
             }));
           }});
  EXPECT_EQ(seen, 4);
  const RunState first = run_state_in(folder / "run");
  EXPECT_EQ(first.phase, RunState::Phase::Complete);
  EXPECT_EQ(first.step, 4);
  EXPECT_EQ(first.end_step, 4);
  EXPECT_EQ(first.workers, 1);
  EXPECT_EQ(first.launch.find(kLaunch), std::string::npos) << "only a hash of it";
  EXPECT_FALSE(first.launch.empty());

  const auto signalled = [&] {
    run_task(worker_task(task_config(folder / "run", 8)), {.prepare = [](Trainer& trainer) {
               trainer.add_hook(std::make_unique<AfterStep>([](Training& training) {
                 if (training.step == 6) std::raise(SIGTERM);
               }));
             }});
  };
  EXPECT_THROW(signalled(), Interrupted);
  const RunState second = run_state_in(folder / "run");
  EXPECT_EQ(second.phase, RunState::Phase::Interrupted);
  EXPECT_EQ(second.id, first.id) << "it continues the run";
  EXPECT_EQ(second.first_sequence, 0);

  RunConfig anew = task_config(folder / "run", 2);
  anew.checkpoints.resume = "never";
  run_task(worker_task(anew, "another launch"));
  const RunState third = run_state_in(folder / "run");
  EXPECT_NE(third.id, first.id);
  EXPECT_GT(third.first_sequence, 0);
  // A program that only evaluates changes nothing.
  const Context context = worker_task(task_config(folder / "run", 2));
  Trainer(context, test_net(), kAdam, test_loss).evaluate(test_feed(8), {});
  EXPECT_EQ(run_state_in(folder / "run").chief, third.chief);
}

}  // namespace
}  // namespace tutti::evaluator_test

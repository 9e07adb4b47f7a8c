#include "tutti/train/loop.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <signal.h>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include "tutti/base/error.h"
#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/cluster/roles.h"
#include "tutti/comm/test_ranks.h"
#include "tutti/embedding/embedding.h"
#include "tutti/metrics/metrics.h"
#include "tutti/store/checkpoint.h"
#include "tutti/train/hooks.h"
#include "tutti/train/load.h"
#include "tutti/train/test_training.h"
#include "tutti/train/trainer.h"

namespace tutti::loop_test {
namespace {

using comm::testing::errors_of_ranks;
using comm::testing::with_ranks;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

RunConfig flags_for(const std::string& logdir, int64_t steps, const std::string& every = "0") {
  RunConfig config = test_flags();
  config.training.lanes = 2;
  config.checkpoints.logdir = logdir;
  config.checkpoints.every = every;
  config.network.timeout = 0.3;
  config.training.steps = steps;
  return config;
}

// A loop with its own context and net, on one rank.
struct OnRank {
  OnRank(comm::Communicator& comm, const RunConfig& config, const LoopOptions& options = {})
      : context(test_context(config)),
        params(*net),
        opt(context, params, torch::optim::AdamOptions(0.1), {.group = comm::testing::borrowed(comm)}),
        loop(context, params, opt, options) {
    for (const auto& view : params.trained()) {
      const torch::NoGradGuard no_grad;
      view.tensor.copy_(torch::arange(view.tensor.numel()).reshape(view.tensor.sizes()) * 0.1);
    }
  }

  void step() {
    for (int64_t lane = opt.lanes().begin; lane < opt.lanes().end; ++lane) {
      opt.zero_grad();
      opt.backward(net->forward(torch::ones({1, 3})).mean());
    }
    opt.step();
  }

  void run() {
    while (loop.goes_on()) step();
  }

  const Context context;
  torch::nn::Linear net{3, 2};
  Parameters params;
  DistributedOptimizer opt;
  Loop loop;
};

// A hook that calls a function after each step and records the calls it gets.
class Listener final : public Hook {
 public:
  explicit Listener(std::string& heard, std::function<void(Training&)> after_step = {})
      : heard_(heard), after_step_(std::move(after_step)) {}

  void begin(Training&) override { heard_ += "begin "; }
  void after_start(Training& training) override { heard_ += fmt::format("start@{} ", training.step); }
  void before_step(Training& training) override { heard_ += fmt::format("{}< ", training.step); }
  void after_lane(Training&, int64_t lane, const Batch&, const LossOutput&) override {
    heard_ += fmt::format("lane{} ", lane);
  }
  void after_step(Training& training, const StepResult& result) override {
    heard_ += fmt::format("<{}/{} ", training.step, result.examples);
    if (after_step_) after_step_(training);
  }
  void end(Training& training) override { heard_ += fmt::format("end@{}", training.step); }
  void on_error(Training&, const std::exception& error) noexcept override { heard_ += error.what(); }

 private:
  std::string& heard_;
  std::function<void(Training&)> after_step_;
};

constexpr milliseconds kTimeout{60000};

TEST(Loop, all_wait_at_the_end_for_the_chief_that_writes) {
  const TestFolder folder;
  const auto errors = errors_of_ranks("plain", 2, kTimeout, [&](comm::Communicator& comm) {
    std::string heard;
    OnRank on(comm, flags_for(folder / "run", 3, "1"));
    on.loop.add_hook(std::make_unique<Listener>(heard, [&](Training&) {
      if (comm.rank() == 0) std::this_thread::sleep_for(milliseconds(150));
    }));
    on.run();
    EXPECT_EQ(store::CheckpointDir(folder / "run").steps(), (std::vector<int64_t>{1, 2, 3})) << comm.rank();
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Loop, a_chief_that_cannot_write_is_what_all_hear_of) {
  const TestFolder folder;
  const std::string run = folder / "run";
  const auto errors = errors_of_ranks("plain", 2, kTimeout, [&](comm::Communicator& comm) {
    std::string heard;
    OnRank on(comm, flags_for(run, 3, "2"));
    on.loop.add_hook(std::make_unique<Listener>(heard, [&](Training&) {
      if (comm.rank() != 0) return;
      std::filesystem::remove_all(run);
      std::ofstream(run) << "no folder";
    }));
    on.run();
  });
  EXPECT_THAT(errors, Each(HasSubstr(run)));
}

TEST(Loop, a_chief_that_cannot_go_on_is_what_all_hear_of) {
  const TestFolder folder;
  RunConfig config = flags_for(folder / "run", 3);
  config.checkpoints.resume = "must";
  const auto errors =
      errors_of_ranks("plain", 2, kTimeout, [&](comm::Communicator& comm) { OnRank(comm, config).run(); });
  EXPECT_THAT(errors, Each(HasSubstr("no checkpoint was found")));
}

TEST(Loop, goes_on_on_all_workers_where_they_were) {
  const TestFolder folder;
  std::vector<std::string> hashes(4);
  std::vector<std::string> heard(4);
  for (const size_t run : {0U, 1U}) {
    with_ranks("plain", 2, [&](comm::Communicator& comm) {
      const size_t at = 2 * run + static_cast<size_t>(comm.rank());
      OnRank on(comm, flags_for(folder / "run", run == 0 ? 3 : 5));
      on.loop.add_hook(std::make_unique<Listener>(heard[at]));
      EXPECT_TRUE(on.loop.goes_on());
      EXPECT_EQ(on.loop.step(), run == 0 ? 0 : 3);
      on.step();
      on.run();
      EXPECT_FALSE(on.loop.goes_on()) << "once more";
      EXPECT_EQ(on.opt.steps(), run == 0 ? 3 : 5);
      hashes[at] = on.params.sha256();
    });
  }
  EXPECT_EQ(hashes[0], hashes[1]);
  EXPECT_EQ(hashes[2], hashes[3]);
  EXPECT_THAT(
      heard, ElementsAre("begin start@0 0< <1/2 1< <2/2 2< <3/2 end@3",
                         "begin start@0 0< <1/2 1< <2/2 2< <3/2 end@3", "begin start@3 3< <4/2 4< <5/2 end@5",
                         "begin start@3 3< <4/2 4< <5/2 end@5"));
  std::string straight;
  with_ranks("inproc", 1, [&](comm::Communicator& comm) {
    OnRank on(comm, flags_for("", 5));
    on.run();
    straight = on.params.sha256();
  });
  EXPECT_EQ(straight, hashes[2]);
}

// The clocks of two workers do not agree on the step.
TEST(Loop, every_so_many_seconds_all_save_after_the_same_step) {
  const TestFolder folder;
  const auto errors = errors_of_ranks("plain", 2, kTimeout, [&](comm::Communicator& comm) {
    OnRank(comm, flags_for(folder / "run", 200, "0.002s")).run();
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_GT(store::CheckpointDir(folder / "run").steps().size(), 1U);
}

TEST(Loop, all_stop_after_the_same_step_when_one_is_told_to) {
  const TestFolder folder;
  std::vector<int64_t> steps(3);
  std::vector<bool> interrupted(3);
  with_ranks("plain", 3, [&](comm::Communicator& comm) {
    const auto rank = static_cast<size_t>(comm.rank());
    OnRank on(comm, flags_for("", 1000));
    while (on.loop.goes_on()) {
      if (rank == 1 && on.loop.step() == 4) on.loop.stop("it has seen enough");
      on.step();
    }
    steps[rank] = on.loop.step();
  });
  EXPECT_THAT(steps, Each(6));
  with_ranks("inproc", 1, [&](comm::Communicator& comm) {
    OnRank on(comm, flags_for("", 1000));
    while (on.loop.goes_on()) {
      if (on.loop.step() == 4) on.loop.stop("it has seen enough");
      on.step();
    }
    EXPECT_EQ(on.loop.step(), 6) << "where it is alone, too";
  });
}

TEST(Loop, one_that_was_told_to_stop_stays_stopped_when_the_program_is_run_again) {
  const TestFolder folder;
  for (const int world : {2, 1, 2}) {
    with_ranks("plain", world, [&](comm::Communicator& comm) {
      OnRank on(comm, flags_for(folder / "run", 1000, "6"));
      while (on.loop.goes_on()) {
        if (on.loop.step() == 4) on.loop.stop("it has seen enough");
        on.step();
      }
      EXPECT_EQ(on.loop.step(), 6) << world;
    });
  }
}

TEST(Loop, a_signal_ends_it_with_a_checkpoint) {
  const TestFolder folder;
  with_ranks("inproc", 1, [&](comm::Communicator& comm) {
    OnRank on(comm, flags_for(folder / "run", 0));
    const auto endless = [&] {
      while (on.loop.goes_on()) {
        if (on.loop.step() == 2) raise(SIGTERM);
        on.step();
      }
    };
    EXPECT_THROW(endless(), Interrupted);
    EXPECT_FALSE(on.loop.goes_on());
  });
  EXPECT_EQ(store::CheckpointDir(folder / "run").steps(), std::vector<int64_t>{3});
}

TEST(Loop, ends_with_the_data_and_knows_epochs) {
  with_ranks("plain", 2, [&](comm::Communicator& comm) {
    OnRank on(comm, flags_for("", 0));
    while (on.loop.goes_on(on.loop.step() < 3 + comm.rank())) on.step();
    EXPECT_EQ(on.loop.step(), 3);
  });
  RunConfig config = flags_for("", 0);
  with_ranks("inproc", 1, [&](comm::Communicator& comm) {
    OnRank on(comm, config, {.steps_per_epoch = 3});
    on.run();
    EXPECT_EQ(on.loop.step(), 3) << "once, where nobody has said how often";
  });
  config.training.epochs = 2;
  with_ranks("inproc", 1, [&](comm::Communicator& comm) {
    OnRank on(comm, config, {.steps_per_epoch = 3});
    on.run();
    EXPECT_EQ(on.loop.step(), 6);
    expect_error(ErrorKind::InvalidArgument, HasSubstr("steps_per_epoch"), [&] { OnRank(comm, config); });
  });
}

TEST(Loop, counts_its_steps_and_wants_one_at_a_time) {
  with_ranks("inproc", 1, [&](comm::Communicator& comm) {
    OnRank on(comm, flags_for("", 0));
    on.step();  // not counted by the loop
    EXPECT_TRUE(on.loop.goes_on());
    EXPECT_EQ(on.loop.step(), 0);
    EXPECT_TRUE(on.loop.goes_on()) << "no step was made";
    EXPECT_EQ(on.loop.step(), 0);
    on.step();
    EXPECT_EQ(on.loop.step(), 1);
    EXPECT_TRUE(on.loop.goes_on());
    EXPECT_EQ(on.loop.step(), 1);
    on.step();
    on.step();
    expect_error(ErrorKind::InvalidArgument, HasSubstr("called 2 times"), [&] { on.loop.goes_on(); });
  });
}

TEST(Loop, workers_that_would_end_after_different_steps_are_told_before_the_first) {
  const auto errors = errors_of_ranks("plain", 2, kTimeout, [&](comm::Communicator& comm) {
    OnRank(comm, flags_for("", 0), {.steps_per_epoch = 5 + comm.rank()}).run();
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("5 steps"), HasSubstr("6 steps"))));
}

TEST(Loop, keeps_the_optimiser_s_state_where_nothing_is_restored) {
  with_ranks("plain", 2, [&](comm::Communicator& comm) {
    OnRank on(comm, flags_for("", 2));
    on.step();
    on.run();
    EXPECT_EQ(on.opt.steps(), 3);
  });
}

TEST(Loop, shards_the_optimiser_s_state_where_the_flags_and_the_memory_say_so) {
  for (const std::string backend : {"shm", "plain"}) {
    for (const std::string asked : {"auto", "sharded", "replicated"}) {
      std::atomic<int64_t> elements = 0;  // of all workers
      std::atomic<int64_t> whole = 0;
      with_ranks(backend, 2, [&](comm::Communicator& comm) {
        RunConfig config = flags_for("", 1);
        config.reduction.optimizer_state = asked;
        OnRank worker(comm, config);
        worker.run();
        for (const Optimizer::Slot& slot : worker.opt.optimizer().state().slots)
          elements += slot.vector.numel();
        whole = 2 * worker.params.blocks().front().values.numel();  // two moments of Adam
      });
      const bool is_sharded = asked == "sharded" || (asked == "auto" && backend == "shm");
      EXPECT_EQ(elements, is_sharded ? whole.load() : 2 * whole) << backend << " " << asked;
    }
  }
}

TEST(Loop, a_step_that_was_begun_may_be_begun_again) {
  std::string heard;
  with_ranks("inproc", 1, [&](comm::Communicator& comm) {
    OnRank on(comm, flags_for("", 1));
    on.loop.add_hook(std::make_unique<Listener>(heard));
    EXPECT_TRUE(on.loop.goes_on());
    on.opt.zero_grad();
    on.run();
  });
  EXPECT_EQ(heard, "begin start@0 0< <1/2 end@1");
}

TEST(Loop, tells_the_other_workers_about_a_failure) {
  std::vector<std::string> heard(2);
  const auto errors = errors_of_ranks("plain", 2, std::chrono::seconds(60), [&](comm::Communicator& comm) {
    OnRank on(comm, flags_for("", 5));
    on.loop.add_hook(std::make_unique<Listener>(heard[static_cast<size_t>(comm.rank())]));
    while (on.loop.goes_on()) {
      if (comm.rank() == 1 && on.loop.step() == 2) throw std::runtime_error("no such file");
      on.step();
    }
  });
  EXPECT_THAT(errors, ElementsAre(HasSubstr("gave up at step 2"), "no such file"));
  EXPECT_THAT(heard, ElementsAre(HasSubstr("gave up at step 2"),
                                 HasSubstr("the program left the training loop before it had ended")));
}

TEST(Loop, lanes_are_observed_and_one_that_is_no_number_ends_it_for_all) {
  std::vector<std::string> heard(2);
  const auto errors = errors_of_ranks("plain", 2, kTimeout, [&](comm::Communicator& comm) {
    OnRank on(comm, flags_for("", 3));
    on.loop.add_hook(std::make_unique<Listener>(heard[static_cast<size_t>(comm.rank())]));
    const Batch batch({{"x", torch::ones({2, 3})}});
    while (on.loop.goes_on()) {
      on.opt.zero_grad();
      torch::Tensor loss = on.net->forward(batch["x"]).mean();
      if (comm.rank() == 1 && on.loop.step() == 1) loss = loss * std::nanf("");
      on.loop.observe(on.opt.lanes().begin, batch, loss);
      on.opt.backward(loss, batch.size());
      on.opt.step();
    }
  });
  EXPECT_THAT(errors[1], HasSubstr("the loss is nan at step 1, lane 1"));
  EXPECT_THAT(errors[0], HasSubstr("the loss is nan at step 1, lane 1"));
  EXPECT_THAT(heard[1], HasSubstr("0< lane1 <1/4 1< the loss is nan at step 1"));
}

TEST(Loop, writes_report_and_events) {
  const TestFolder folder;
  RunConfig config = flags_for(folder / "run", 4);
  config.output.report = folder / "report.json";
  config.output.summary_every = 2;
  with_ranks("inproc", 1, [&](comm::Communicator& comm) { OnRank(comm, config).run(); });
  const auto report = nlohmann::json::parse(std::ifstream(config.output.report));
  EXPECT_EQ(report.at("strategy"), "single");
  EXPECT_EQ(report.at("steps"), 4);
  EXPECT_EQ(report.at("lanes"), 2);
  EXPECT_EQ(report.at("examples"), 8);
  EXPECT_TRUE(report.at("loss").is_number());
  with_ranks("inproc", 1, [&](comm::Communicator& comm) {
    config.training.steps = 6;
    OnRank(comm, config).run();
  });
  EXPECT_EQ(nlohmann::json::parse(std::ifstream(config.output.report)).at("restarts"), 1);
}

TEST(Loop, weights_that_are_no_numbers_are_not_saved) {
  const TestFolder folder;
  for (const bool guard : {true, false}) {
    RunConfig config = flags_for(folder / "run", 7);
    config.training.nan_guard = guard;
    with_ranks("inproc", 1, [&](comm::Communicator& comm) {
      OnRank on(comm, config);
      std::string heard;
      on.loop.add_hook(std::make_unique<Listener>(heard, [&](Training& training) {
        if (training.step == 7) on.net->weight.detach()[1][1].fill_(std::nanf(""));
      }));
      if (guard) {
        expect_error(ErrorKind::InvalidArgument,
                     HasSubstr("weights are no longer finite after step 7 and were not saved"),
                     [&] { on.run(); });
      } else {
        on.run();
      }
    });
    EXPECT_EQ(store::CheckpointDir(folder / "run").steps().empty(), guard);
  }
}

// A loop that trains a net with dropout and batch norm. The ranks of a world are threads, which share the
// random generator, so it is alone.
struct OnFeed {
  OnFeed(comm::Communicator& comm, const RunConfig& config, const LoopOptions& options = {})
      : context(test_context(config)),
        params(*net, {.layout = layout_for(context, *net)}),
        opt(context, params, torch::optim::AdamOptions(0.01), {.group = comm::testing::borrowed(comm)}),
        loop(context, params, opt, options) {}

  void run(std::optional<int64_t> crash = {}) {
    const data::Sampler sampler(feed.size(), {.lanes = opt.all_lanes(), .batch = 4, .drop_remainder = true});
    std::vector<int64_t> examples;
    while (loop.goes_on()) {
      if (loop.step() == crash) throw std::runtime_error("crash");
      for (int64_t lane = opt.lanes().begin; lane < opt.lanes().end; ++lane) {
        sampler.examples(loop.step(), lane, examples);
        const Batch batch = feed.read(examples);
        opt.zero_grad();
        opt.backward(test_loss(*net, batch).loss, batch.size());
      }
      opt.step();
    }
  }

  const Context context;
  const data::Feed feed = test_feed();
  const std::shared_ptr<TestNet> net = test_net();
  Parameters params;
  DistributedOptimizer opt;
  Loop loop;
};

TEST(Loop, ends_after_the_first_step_whose_loss_is_not_finite) {
  for (const bool guard : {true, false}) {
    RunConfig config = flags_for("", 6);
    config.training.nan_guard = guard;
    const auto errors = errors_of_ranks("plain", 2, kTimeout, [&](comm::Communicator& comm) {
      OnRank on(comm, config);
      while (on.loop.goes_on()) {
        if (on.loop.step() == 2 && comm.rank() == 1) on.net->weight.detach().fill_(std::nanf(""));
        on.step();
      }
      EXPECT_EQ(on.loop.step(), 6);
    });
    EXPECT_THAT(errors, Each(guard ? HasSubstr("the loss is nan at step 2") : HasSubstr("")));
  }
}

// A lane of OnFeed has the bits of a Trainer's lane, in each precision and layout.
TEST(Loop, computes_in_the_precision_and_layout_of_the_flags_as_a_trainer_does) {
  std::set<std::string> hashes;
  for (const char* precision : {"fp32", "bf16"}) {
    for (const char* layout : {"contiguous", "channels-last"}) {
      RunConfig config = flags_for("", 8);
      config.compute.precision = precision;
      config.compute.layout = layout;
      std::string in_loop;
      std::map<std::string, double> measured;
      with_ranks("inproc", 1, [&](comm::Communicator& comm) {
        OnFeed on(comm, config);
        on.run();
        in_loop = on.params.sha256();
        measured = on.loop.measure(make_trainable(on.net, test_loss), on.feed, {metrics::accuracy("label")});
      });
      const Context context = test_context(config);
      Trainer trainer(context, test_net(), torch::optim::AdamOptions(0.01), test_loss);
      trainer.fit(test_feed().shuffle());
      EXPECT_EQ(in_loop, trainer.parameters().sha256()) << precision << " " << layout;
      EXPECT_EQ(measured, trainer.measure(test_feed(), {metrics::accuracy("label")}))
          << precision << " " << layout;
      hashes.insert(in_loop);
    }
  }
  EXPECT_GE(hashes.size(), 2U) << "bf16 has other bits than fp32";
}

TEST(Loop, refuses_a_folder_that_another_training_of_the_program_has) {
  const TestFolder folder;
  const Context context = test_context(flags_for(folder / "run", 2));
  const Group all = connect(context);
  torch::nn::Linear net{3, 2};
  Parameters params(*net);
  DistributedOptimizer opt(context, params, torch::optim::SGDOptions(0.1), {.group = all.split(0)});
  const auto refused = HasSubstr("two trainings of this program use the log directory");
  {
    const Loop never_begun(context, params, opt);
    expect_error(ErrorKind::InvalidArgument, refused, [&] { Loop(context, params, opt); });
    expect_error(ErrorKind::InvalidArgument, refused, [&] {
      Trainer(context, test_net(), torch::optim::SGDOptions(0.1), test_loss, {.group = all.split(0)});
    });
    const Loop named(context, params, opt, {.name = "other"});
  }
  Trainer trainer(context, test_net(), torch::optim::SGDOptions(0.1), test_loss, {.group = all.split(0)});
  expect_error(ErrorKind::InvalidArgument, refused, [&] { Loop(context, params, opt); });
  Trainer named(context, test_net(), torch::optim::SGDOptions(0.1), test_loss,
                {.group = all.split(0), .name = "third"});
  trainer.fit(test_feed());
  named.fit(test_feed());
}

TEST(Loop, refuses_what_it_cannot_do_when_it_is_made) {
  const TestFolder folder;
  RunConfig config = flags_for("", 2);
  const Context context = test_context(config);
  torch::nn::Linear net{3, 2};
  torch::nn::Linear other{3, 2};
  Parameters params(*net);
  Parameters of_other(*other);
  DistributedOptimizer opt(context, params, torch::optim::SGDOptions(0.1));
  expect_error(ErrorKind::InvalidArgument, HasSubstr("parameters of 'b' that its optimiser does not train"),
               [&] {
                 Loop(context, {{"b", of_other, opt}});
               });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("pass split(0) of the group"),
               [&] { DistributedOptimizer(context, of_other, torch::optim::SGDOptions(0.1)); });
  config.exports.dir = folder / "exports";
  expect_error(ErrorKind::InvalidArgument, HasSubstr("--export works with a Trainer"),
               [&] { Loop(context.with(config), params, opt); });
  const Identity worker =
      identity_in(ClusterSpec::parse("ps|h:2222,worker|h:2223"), {.job = "worker"}, "a test");
  const Context by_servers(flags_for("", 2), worker);
  DistributedOptimizer opt_a(by_servers, params, torch::optim::SGDOptions(0.1));
  DistributedOptimizer opt_b(by_servers, of_other, torch::optim::SGDOptions(0.1));
  expect_error(ErrorKind::InvalidArgument,
               HasSubstr("ps-async: a loop of several nets needs connected workers"), [&] {
                 Loop(by_servers, {{"a", params, opt_a}, {"b", of_other, opt_b}});
               });
  config = flags_for("", 0);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("this run has no last step"),
               [&] { Loop(context.with(config), params, opt, {.learning_rate = schedules::cosine(0.1)}); });
}

// An error names the table when the optimiser is made, and what is missing before the first lane.
TEST(Loop, refuses_sharded_tables_without_their_module_or_their_batches) {
  struct Users : torch::nn::Module {
    nn::Embedding user = register_module("user", nn::Embedding(100'000, 4));
  };
  struct Both : torch::nn::Module {
    std::shared_ptr<Users> users = register_module("users", std::make_shared<Users>());
    torch::nn::Linear head = register_module("head", torch::nn::Linear(4, 1));
  };
  const Context context = test_context(flags_for("", 1));
  Users alone;
  expect_error(ErrorKind::InvalidArgument, HasSubstr("embedding 'user' cannot be trained"),
               [&] { Parameters{alone}; });
  // A lookup with gradients outside of any training does not invent a name.
  expect_error(ErrorKind::InvalidArgument,
               HasSubstr("'Embedding(100000, 4)' can only be trained by a Trainer"),
               [&] { alone.user->forward(torch::zeros({1}, torch::kLong)); });
  const auto both = std::make_shared<Both>();
  Parameters params(*both);
  expect_error(ErrorKind::InvalidArgument,
               HasSubstr("embedding 'users.user' cannot be trained without its module"),
               [&] { DistributedOptimizer(context, params, torch::optim::SGDOptions(0.1)); });
  DistributedOptimizer opt(context, params, torch::optim::SGDOptions(0.1), {.module = both});
  const std::vector<Batch> batches(2, Batch({{"user", torch::zeros({1}, torch::kLong)}}));
  expect_error(ErrorKind::InvalidArgument, HasSubstr("outside of a Loop"),
               [&] { EXPECT_FALSE(opt.fetch(batches)); });
  Loop loop(context, params, opt);
  ASSERT_TRUE(loop.goes_on());
  expect_error(ErrorKind::InvalidArgument, HasSubstr("with 1 batches, but this worker has 2 lanes"), [&] {
    EXPECT_TRUE(opt.fetch({&batches[0], 1}));
  });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("call fetch() with the batches"),
               [&] { opt.zero_grad(); });
}

// Records the learning rate of each part at each step.
class Rates final : public Hook {
 public:
  explicit Rates(std::vector<std::vector<double>>& seen) : seen_(seen) {}
  void before_step(Training& training) override {
    seen_.emplace_back();
    for (const SessionPart& part : training.parts) seen_.back().push_back(part.optimizer.learning_rate());
  }

 private:
  std::vector<std::vector<double>>& seen_;
};

TEST(Loop, sets_the_rates_of_its_schedules) {
  const Context context = test_context(flags_for("", 4));
  const Group all = connect(context);
  torch::nn::Linear g{3, 2};
  torch::nn::Linear d{3, 2};
  Parameters params_g(*g);
  Parameters params_d(*d);
  DistributedOptimizer opt_g(context, params_g, torch::optim::SGDOptions(0.5), {.group = all.split(0)});
  DistributedOptimizer opt_d(context, params_d, torch::optim::SGDOptions(0.5), {.group = all.split(0)});
  Loop loop(
      context,
      {{.name = "g", .parameters = params_g, .optimizer = opt_g},
       {.name = "d", .parameters = params_d, .optimizer = opt_d, .learning_rate = schedules::constant(0.2)}},
      {.learning_rate = schedules::decay(1, 0)});
  std::vector<std::vector<double>> seen;
  loop.add_hook(std::make_unique<Rates>(seen));
  while (loop.goes_on()) {
    for (int lane = 0; lane < 2; ++lane) {
      opt_g.zero_grad();
      opt_g.backward(g->forward(torch::ones({1, 3})).mean());
    }
    opt_g.step();
  }
  const std::vector<std::vector<double>> expected = {{1, 0.2}, {0.75, 0.2}, {0.5, 0.2}, {0.25, 0.2}};
  EXPECT_EQ(seen, expected);
  opt_d.set_learning_rate(0.3);
  EXPECT_EQ(opt_d.learning_rate(), 0.3);
  EXPECT_EQ(opt_d.optimizer().learning_rate(), 0.3);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("the learning rate"),
               [&] { opt_d.set_learning_rate(-1); });
}

// Returns the warnings of a run to `steps` with this schedule.
std::string warnings(const std::string& logdir, int64_t steps, const Schedule& schedule) {
  RunConfig config = flags_for(logdir, steps);
  config.output.log_level = "warning";
  ::testing::internal::CaptureStderr();
  with_ranks("inproc", 1,
             [&](comm::Communicator& comm) { OnRank(comm, config, {.learning_rate = schedule}).run(); });
  return ::testing::internal::GetCapturedStderr();
}

TEST(Loop, warns_of_a_schedule_for_another_number_of_steps) {
  EXPECT_EQ(warnings("", 6, schedules::cosine(0.1, 6)), "");
  EXPECT_EQ(warnings("", 6, schedules::cosine(0.1)), "");
  EXPECT_EQ(warnings("", 6, schedules::warm_up(0, schedules::share(0.5), schedules::constant(0.1))), "");
  EXPECT_THAT(
      warnings("", 6, schedules::cosine(0.1, 4, 0.02)),
      HasSubstr(
          "scheduled for 4 steps, but the training ends after step 6: from step 4 on it stays at 0.02"));
  EXPECT_THAT(warnings("", 6, schedules::warm_up(0, 2, schedules::decay(0.1, 4, 8))),
              HasSubstr("scheduled for 8 steps, but the training ends after step 6, where it is still 0.05"));
}

TEST(Loop, warns_that_a_longer_run_has_other_rates_from_there_on) {
  const TestFolder folder;
  EXPECT_EQ(warnings(folder / "run", 4, schedules::cosine(0.1)), "");
  EXPECT_THAT(warnings(folder / "run", 8, schedules::cosine(0.1)),
              HasSubstr("was to end after step 4, and now ends after step 8"));
  EXPECT_EQ(warnings(folder / "fixed", 4, schedules::constant(0.1)), "");
  EXPECT_EQ(warnings(folder / "fixed", 8, schedules::constant(0.1)), "");
}

using Values = std::map<std::string, double>;

TEST(Loop, keeps_a_moving_average_that_checkpoints_contain) {
  constexpr double kDecay = 0.9;
  const auto average = [](const std::string& logdir, int world, int64_t steps) {
    torch::Tensor found;
    with_ranks("plain", world, [&](comm::Communicator& comm) {
      OnRank on(comm, flags_for(logdir, steps), {.average = kDecay});
      const auto weights = [&] { return on.net->weight.detach().to(torch::kDouble, false, true); };
      torch::Tensor sum = torch::zeros_like(weights());
      double decayed = 0;
      std::string heard;
      on.loop.add_hook(std::make_unique<Listener>(heard, [&](Training&) {
        sum = sum * kDecay + weights();
        decayed = decayed * kDecay + 1;
      }));
      on.run();
      const torch::Tensor last = weights();
      torch::Tensor own;
      on.loop.with_average([&] { own = weights(); });
      EXPECT_TRUE(weights().equal(last));
      EXPECT_FALSE(own.equal(last));
      if (logdir.empty()) {
        EXPECT_TRUE(torch::allclose(own, sum / decayed, 1e-5, 1e-6));
      }
      if (comm.rank() == 0) found = own;
    });
    return found;
  };
  const TestFolder folder;
  const torch::Tensor straight = average("", 1, 8);
  average(folder / "run", 2, 3);
  EXPECT_TRUE(average(folder / "run", 2, 8).equal(straight));
  const auto saved = load(folder / "run/latest/average.safetensors");
  EXPECT_EQ(saved.size(), 2U);
  EXPECT_TRUE(saved.at("weight").to(torch::kDouble).equal(straight));
}

TEST(Loop, of_several_nets_averages_those_that_ask_for_it_and_keeps_the_best_of_all) {
  const TestFolder folder;
  const Context context = test_context(flags_for(folder / "run", 6));
  torch::nn::Linear g(3, 2);
  torch::nn::Linear d(3, 2);
  Parameters params_g(*g);
  Parameters params_d(*d);
  const Group all = connect(context);
  const torch::optim::AdamOptions adam(0.1);
  DistributedOptimizer opt_g(context, params_g, adam, {.group = all.split(0)});
  DistributedOptimizer opt_d(context, params_d, adam, {.group = all.split(0)});
  Loop loop(context, {{.name = "g", .parameters = params_g, .optimizer = opt_g, .average = 0.5},
                      {.name = "d", .parameters = params_d, .optimizer = opt_d}});
  torch::Tensor last_g;  // the weights, and not their average
  torch::Tensor best_g;
  torch::Tensor best_d;
  const auto values = [&] {
    if (loop.step() == 4) {
      EXPECT_FALSE(g->weight.equal(last_g)) << "the average is measured";
      best_g = g->weight.detach().clone();
      best_d = d->weight.detach().clone();
    }
    return Values{{"error", loop.step() == 4 ? 0 : 1}};
  };
  loop.validate_with({.measure = values, .every_steps = 2});
  loop.add_hook(hooks::keep_best({.monitor = "error"}));
  loop.add_hook(hooks::early_stopping({.monitor = "error", .patience = 10, .restore_best = true}));
  const auto step = [](torch::nn::Linear& net, DistributedOptimizer& opt) {
    for (int64_t lane = opt.lanes().begin; lane < opt.lanes().end; ++lane) {
      opt.zero_grad();
      opt.backward(net->forward(torch::ones({1, 3})).square().mean());
    }
    opt.step();
  };
  while (loop.goes_on()) {
    step(d, opt_d);
    step(g, opt_g);
    last_g = g->weight.detach().clone();
  }
  const auto best = load(folder / "run/best");
  EXPECT_TRUE(best.at("g.weight").equal(best_g));
  EXPECT_TRUE(best.at("d.weight").equal(best_d));
  EXPECT_TRUE(g->weight.equal(best_g)) << "restored";
  EXPECT_TRUE(d->weight.equal(best_d)) << "restored";
  const auto average = load(folder / "run/latest/average.safetensors");
  EXPECT_EQ(average.size(), 2U);
  EXPECT_TRUE(average.contains("g.weight"));
  EXPECT_TRUE(average.contains("g.bias"));
}

TEST(Loop, a_validation_leaves_the_training_as_it_is) {
  const auto ended = [](bool is_validated) {
    std::string found;
    with_ranks("inproc", 1, [&](comm::Communicator& comm) {
      OnFeed on(comm, flags_for("", 20), {.average = is_validated ? 0.9 : 0});
      int64_t validations = 0;
      const auto measure = [&] {
        ++validations;
        EXPECT_FALSE(on.net->is_training());
        EXPECT_FALSE(torch::GradMode::is_enabled());
        on.net->norm->running_mean.add_(1);
        return Values{{"drawn", torch::rand({1}).item<double>()}};
      };
      if (is_validated) on.loop.validate_with({.measure = measure, .nets = {on.net}, .every_steps = 3});
      on.run();
      EXPECT_EQ(validations, is_validated ? 7 : 0) << "six, and one at the end";
      EXPECT_TRUE(on.net->is_training());
      found = fmt::format("{} {} {}", on.params.sha256(), on.net->norm->running_mean.sum().item<double>(),
                          torch::rand({1}).item<double>());
    });
    return found;
  };
  EXPECT_EQ(ended(true), ended(false));
}

// The value becomes worse on the chief, and better on the other worker.
TEST(Loop, the_values_of_the_chief_count_for_all) {
  const TestFolder folder;
  RunConfig config = flags_for("", 100);
  config.output.report = folder / "report.json";
  std::vector<std::vector<History::Row>> rows(2);
  with_ranks("plain", 2, [&](comm::Communicator& comm) {
    OnRank on(comm, config, {.steps_per_epoch = 4});
    const auto values = [&] {
      const auto step = static_cast<double>(on.loop.step());
      return Values{{"loss", comm.rank() == 0 ? step : -step}};
    };
    on.loop.validate_with({.measure = values});
    on.loop.add_hook(hooks::early_stopping());
    on.run();
    EXPECT_EQ(on.loop.step(), 9) << "the step after the one in which it was decided";
    rows[static_cast<size_t>(comm.rank())] = on.loop.history().rows;
  });
  ASSERT_EQ(rows[0].size(), 3U);
  EXPECT_EQ(rows[0], rows[1]);
  for (const size_t i : {0U, 1U, 2U}) {
    EXPECT_EQ(rows[0][i].step, i < 2 ? 4 * static_cast<int64_t>(i + 1) : 9);
    EXPECT_EQ(rows[0][i].validation.at("loss"), static_cast<double>(rows[0][i].step));
    EXPECT_TRUE(rows[0][i].loss.has_value());
  }
  const auto report = nlohmann::json::parse(std::ifstream(config.output.report));
  EXPECT_EQ(report.at("metrics").at("validation_loss"), 9);
}

TEST(Loop, measures_a_feed_in_shares) {
  torch::manual_seed(5);
  const torch::Tensor x = torch::randn({50, 3});
  const torch::Tensor label = torch::arange(50) % 2;
  const data::Feed feed(data::from_tensors({{"x", x}, {"label", label}}));
  const auto entropy = [](const torch::Tensor& prediction, const Batch& batch) {
    return torch::cross_entropy_loss(prediction, batch["label"]);
  };
  Values alone;
  for (const int world : {1, 2, 3}) {
    with_ranks("plain", world, [&](comm::Communicator& comm) {
      OnRank on(comm, flags_for("", 2));
      on.run();
      const auto measure = [&](bool here) {
        return on.loop.measure(make_trainable(on.net), feed,
                               {metrics::accuracy("label"), metrics::mean("loss", entropy)},
                               {.batch = 7, .here = here});
      };
      const Values values = measure(false);
      if (world > 1) {
        EXPECT_EQ(values, alone) << world;
        if (comm.rank() == 0) {
          EXPECT_EQ(measure(true), alone) << "by itself";
        }
        return;
      }
      alone = values;
      const torch::NoGradGuard no_grad;
      const torch::Tensor prediction = on.net->forward(x);
      EXPECT_DOUBLE_EQ(values.at("accuracy"),
                       prediction.argmax(1).eq(label).to(torch::kDouble).mean().item<double>());
      EXPECT_NEAR(values.at("loss"), torch::cross_entropy_loss(prediction, label).item<double>(), 1e-5);
    });
  }
}

TEST(Loop, a_resumed_run_remembers_the_best_value_and_continues_the_history) {
  struct Result {
    int64_t step = 0;
    std::string hash;
    std::vector<History::Row> rows;
    bool operator==(const Result&) const = default;
  };
  const data::Feed test = test_feed(32);
  const auto train = [&](const std::string& logdir, std::optional<int64_t> crash) {
    Result result;
    with_ranks("inproc", 1, [&](comm::Communicator& comm) {
      OnFeed on(comm, flags_for(logdir, 100, "3"), {.steps_per_epoch = 8, .average = 0.9});
      const auto values = [&] {
        return on.loop.measure(make_trainable(on.net), test, {metrics::accuracy("label")});
      };
      on.loop.validate_with({.measure = values, .every_steps = 5});
      on.loop.add_hook(hooks::early_stopping(
          {.monitor = "accuracy", .patience = 1, .min_delta = 2}));  // no gain is enough
      try {
        on.run(crash);
      } catch (const std::runtime_error&) {
        if (!crash) throw;
      }
      result = {on.loop.step(), on.params.sha256(), on.loop.history().rows};
    });
    return result;
  };
  const Result straight = train("", {});
  EXPECT_EQ(straight.step, 16) << "the step after the third validation";
  EXPECT_EQ(straight.rows.size(), 5U) << "three validations, an epoch, and another one with which it ends";
  const TestFolder folder;
  EXPECT_EQ(train(folder / "run", 12).step, 12);
  EXPECT_EQ(train(folder / "run", {}), straight);
}

// The first validation gives an infinite loss, which every later one improves on; another value is never one.
TEST(Loop, a_resumed_run_remembers_values_that_are_not_finite) {
  const auto train = [](const std::string& logdir, std::optional<int64_t> crash) {
    std::string rows;
    with_ranks("inproc", 1, [&](comm::Communicator& comm) {
      OnFeed on(comm, flags_for(logdir, 12, "3"), {.steps_per_epoch = 8});
      const auto values = [&] {
        const bool is_first = on.loop.step() < 3;
        return Values{{"loss", is_first ? std::numeric_limits<double>::infinity() : 1}, {"kl", NAN}};
      };
      on.loop.validate_with({.measure = values, .every_steps = 2});
      on.loop.add_hook(hooks::keep_best());
      on.loop.add_hook(hooks::early_stopping({.patience = 1}));
      try {
        on.run(crash);
      } catch (const std::runtime_error&) {
        if (!crash) throw;
      }
      for (const History::Row& row : on.loop.history().rows)
        rows += fmt::format("{} {} {}\n", row.step, row.loss.value_or(-1), row.validation);
    });
    return rows;
  };
  const TestFolder folder;
  const std::string straight = train(folder / "straight", {});
  EXPECT_THAT(straight, HasSubstr("inf"));
  EXPECT_THAT(straight, HasSubstr("nan"));
  train(folder / "run", 5);
  EXPECT_EQ(train(folder / "run", {}), straight);
}

TEST(Loop, knows_the_loss_of_lanes_that_were_added) {
  const auto losses = [](bool is_passed) {
    std::optional<double> loss;
    with_ranks("plain", 2, [&](comm::Communicator& comm) {
      RunConfig config = flags_for("", 4);
      config.training.lanes = 2;
      OnRank on(comm, config, {.steps_per_epoch = 4});
      while (on.loop.goes_on()) {
        for (int64_t lane = on.opt.lanes().begin; lane < on.opt.lanes().end; ++lane) {
          on.opt.zero_grad();
          on.net->forward(torch::ones({1, 3})).sum().backward();
          on.opt.add_lane(2, is_passed ? torch::full({}, lane + 1.0) : torch::Tensor());
        }
        on.opt.step();
      }
      ASSERT_EQ(on.loop.history().rows.size(), 1U);
      if (comm.rank() == 0) loss = on.loop.history().rows[0].loss;
    });
    return loss;
  };
  EXPECT_FALSE(losses(false).has_value());
  EXPECT_EQ(losses(true), 1.5) << "the mean over the lanes of both workers";
}

TEST(Loop, workers_that_do_not_validate_alike_are_told_before_the_first_step) {
  const auto errors = errors_of_ranks("plain", 2, kTimeout, [&](comm::Communicator& comm) {
    OnRank on(comm, flags_for("", 3));
    if (comm.rank() == 0)
      on.loop.validate_with({.measure = [] { return Values{{"loss", 1}}; }, .every_steps = 2});
    on.run();
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("never evaluated"), HasSubstr("every 2 steps"))));
}

TEST(Loop, a_validation_that_fails_on_one_worker_is_told_to_the_others) {
  const auto errors = errors_of_ranks("plain", 2, std::chrono::seconds(60), [&](comm::Communicator& comm) {
    OnRank on(comm, flags_for("", 3));
    const auto values = [&]() -> Values {
      if (comm.rank() == 1) throw std::runtime_error("no such file");
      return {{"loss", 1}};
    };
    on.loop.validate_with({.measure = values, .every_steps = 2});
    on.run();
  });
  EXPECT_THAT(errors, ElementsAre(HasSubstr("no such file"), "no such file"));
}

TEST(Loop, refuses_a_validation_that_never_comes_or_comes_too_late) {
  const auto measure = [] { return Values{{"loss", 1}}; };
  with_ranks("inproc", 1, [&](comm::Communicator& comm) {
    OnRank on(comm, flags_for("", 3));
    expect_error(ErrorKind::InvalidArgument, HasSubstr("steps_per_epoch"),
                 [&] { on.loop.validate_with({.measure = measure, .every_epochs = 2}); });
    EXPECT_TRUE(on.loop.goes_on());
    expect_error(ErrorKind::InvalidArgument, HasSubstr("had begun"),
                 [&] { on.loop.validate_with({.measure = measure}); });
    on.run();
    expect_error(ErrorKind::InvalidArgument, HasSubstr("decay"),
                 [&] { OnRank(comm, flags_for("", 3), {.average = 1.5}); });
  });
}

}  // namespace
}  // namespace tutti::loop_test

// Tests which run a checkpoint belongs to, and which trainings may share a log directory.
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/cluster/test_identity.h"
#include "tutti/comm/test_ranks.h"
#include "tutti/store/checkpoint.h"
#include "tutti/train/loop.h"
#include "tutti/train/test_trainer.h"

namespace tutti::run_identity_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Trains ten steps, then twenty with something changed, and checks the messages of the second training.
struct Two {
  TestFolder folder;
  RunConfig config = test_flags();
  FlagValues own;  // flags of the program

  Two() {
    config.checkpoints.logdir = folder / "run";
    config.output.log_level = "warning";
  }
  Context context(int64_t steps) const {
    RunConfig now = config;
    now.training.steps = steps;
    FlagValues values = values_of(now);
    values.insert(values.end(), own.begin(), own.end());
    return Context(now, Identity{}, values);
  }
  // Returns the output on stderr.
  std::string train(int64_t steps, const data::Feed& feed, const TrainerOptions& options = {},
                    const OptimizerOptions& optimizer = kAdam) const {
    const Context now = context(steps);
    testing::internal::CaptureStderr();
    try {
      Trainer trainer(now, test_net(), optimizer, test_loss, options);
      trainer.fit(feed);
    } catch (...) {
      testing::internal::GetCapturedStderr();
      throw;
    }
    return testing::internal::GetCapturedStderr();
  }
};

data::Feed feed() { return test_feed().shuffle(); }

TEST(RunIdentity, other_data_are_refused_by_name) {
  Two two;
  two.train(10, feed());
  expect_error(ErrorKind::InvalidArgument,
               AllOf(HasSubstr("examples 100, not 120"), HasSubstr("--resume weights")),
               [&] { two.train(20, test_feed(120).shuffle()); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("order shuffled, not as they are"),
               [&] { two.train(20, test_feed()); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("column label"), [&] {
    const Batch all = test_feed().read([] {
      std::vector<int64_t> examples(100);
      for (size_t i = 0; i < examples.size(); ++i) examples[i] = static_cast<int64_t>(i);
      return examples;
    }());
    two.train(20, data::Feed(data::from_tensors({{"image", all["image"]}, {"label", (all["label"] + 1) % 4}}))
                      .shuffle());
  });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("examples of each lane"), [&] {
    two.train(20, feed().deal([](int64_t, int64_t examples) {
      return std::vector<data::ExampleRange>{{0, examples / 2}};
    }));
  });
  EXPECT_EQ(two.train(20, feed()), "");
}

TEST(RunIdentity, other_arithmetic_is_refused_by_name) {
  Two two;
  two.train(10, feed());
  expect_error(ErrorKind::InvalidArgument, HasSubstr("clip-norm 0.0, not 1.0"),
               [&] { two.train(20, feed(), {.clip_norm = 1}); });
  const RunConfig before = two.config;
  two.config.reduction.order = "fast";
  expect_error(ErrorKind::InvalidArgument, HasSubstr("reduction reduce tree, not reduce fast"),
               [&] { two.train(20, feed()); });
  two.config = before;
  two.config.reduction.wire_precision = "bf16";
  expect_error(ErrorKind::InvalidArgument, HasSubstr("bfloat16 on the wire"), [&] { two.train(20, feed()); });
  two.config = before;
  two.config.compute.layout = "contiguous";  // auto is channels-last for this net
  expect_error(ErrorKind::InvalidArgument, HasSubstr("layout channels-last, not contiguous"),
               [&] { two.train(20, feed()); });
  two.config = before;
  two.config.compute.layout = "channels-last";
  two.config.reduction.optimizer_state = "sharded";
  EXPECT_EQ(two.train(20, feed()), "");
}

TEST(RunIdentity, flags_of_the_program_are_recorded) {
  Two two;
  two.own = {{"--rate", "0.1", FlagScope::Run},
             {"--hidden", "20", FlagScope::Model},
             {"--out", "a.txt", FlagScope::Local},
             {"--more-steps", "1", FlagScope::Job}};
  two.train(10, feed());
  two.own[0].text = "0.2";
  two.own[2].text = "b.txt";
  two.own[3].text = "2";
  EXPECT_THAT(two.train(15, feed()),
              AllOf(HasSubstr("--rate 0.1, not 0.2"), Not(HasSubstr("--out")), Not(HasSubstr("--more"))));
  EXPECT_EQ(two.train(20, feed()), "");
  two.own[1].text = "30";
  expect_error(ErrorKind::InvalidArgument, HasSubstr("--hidden 20, not 30"), [&] { two.train(30, feed()); });
}

TEST(RunIdentity, another_learning_rate_is_told) {
  Two two;
  two.train(10, feed());
  EXPECT_THAT(two.train(20, feed(), {}, torch::optim::AdamOptions(2e-2)),
              AllOf(HasSubstr("lr 0.01, not 0.02"), Not(HasSubstr("betas"))));
}

TEST(RunIdentity, checkpoints_from_before_all_this_still_load) {
  Two two;
  Two whole;
  whole.train(20, feed());
  const auto straight =
      store::CheckpointDir(whole.config.checkpoints.logdir).load(20).state.at("weights_sha256");
  two.train(10, feed());
  store::CheckpointDir folder(two.config.checkpoints.logdir);
  store::Checkpoint checkpoint = folder.load(10);
  for (const char* key : {"flags", "settings", "data"}) checkpoint.state.erase(key);
  folder.save(checkpoint);
  EXPECT_EQ(two.train(20, feed()), "");
  EXPECT_EQ(folder.load(20).state.at("weights_sha256"), straight);
  RunConfig other = two.config;
  other.training.batch = 5;
  std::filesystem::remove_all(two.config.checkpoints.logdir);
  folder.save(checkpoint);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("--batch 4, not 5"), [&] { train(other, 30); });
}

TEST(RunIdentity, resume_weights_keeps_the_weights_and_begins_anew) {
  Two two;
  two.train(10, feed());
  store::CheckpointDir folder(two.config.checkpoints.logdir);
  const store::Checkpoint before = folder.load(10);
  two.config.training.lanes = 2;
  expect_error(ErrorKind::InvalidArgument,
               AllOf(HasSubstr("--lanes 1, not 2"), HasSubstr("--resume weights")),
               [&] { two.train(20, feed()); });
  two.config.checkpoints.resume = "weights";
  two.config.training.steps = 0;
  const Context context = two.context(0);
  Trainer trainer(context, test_net(5), torch::optim::AdagradOptions(0.1), test_loss);
  trainer.predict(test_feed(4));  // starts the run
  EXPECT_EQ(trainer.step(), 0);
  EXPECT_EQ(trainer.parameters().sha256(), before.state.at("weights_sha256"));
  trainer.fit(feed(), {.steps = 4});
  EXPECT_EQ(trainer.step(), 4);
  EXPECT_EQ(trainer.report().restarts, 0);
  EXPECT_EQ(folder.load_latest().checkpoint->step, 4);
}

TEST(RunIdentity, resume_weights_wants_a_checkpoint_of_the_same_model) {
  Two two;
  two.config.checkpoints.resume = "weights";
  expect_error(ErrorKind::InvalidArgument, HasSubstr("no checkpoint was found"),
               [&] { two.train(10, feed()); });
}

// A task that a launcher has started again belongs to the run that the launch has begun.
TEST(RunIdentity, a_task_that_is_started_again_does_not_begin_anew_again) {
  for (const char* mode : {"never", "weights"}) {
    Two two;
    two.train(10, feed());
    two.config.checkpoints.resume = mode;
    Identity identity;
    identity.launch = "of today";
    const auto train = [&](int64_t steps) {
      RunConfig config = two.config;
      config.training.steps = steps;
      config.output.log_level = "error";
      const Context context(config, identity);
      Trainer trainer(context, test_net(), kAdam, test_loss);
      trainer.fit(feed());
      return trainer.report().restarts;
    };
    EXPECT_EQ(train(4), 0) << mode;
    EXPECT_EQ(train(8), 1) << mode;
    identity.launch = "of tomorrow";
    EXPECT_EQ(train(2), 0) << mode;
  }
}

TEST(RunIdentity, a_second_trainer_in_one_log_directory_needs_a_name) {
  Two two;
  const Context context = two.context(5);
  const Group all = connect(context);
  Trainer first(context, test_net(), kAdam, test_loss, {.group = all.split(0)});
  Trainer second(context, test_net(2), kAdam, test_loss, {.group = all.split(0), .name = "second"});
  // Before any of them has begun.
  expect_error(ErrorKind::InvalidArgument,
               AllOf(HasSubstr(two.config.checkpoints.logdir), HasSubstr("TrainerOptions::name")),
               [&] { Trainer(context, test_net(2), kAdam, test_loss, {.group = all.split(0)}); });
  first.fit(feed());
  second.fit(feed());
  EXPECT_NE(first.parameters().sha256(), second.parameters().sha256());
  EXPECT_EQ(
      store::CheckpointDir(two.config.checkpoints.logdir + "/second").load(5).state.at("weights_sha256"),
      second.parameters().sha256());
  expect_error(ErrorKind::InvalidArgument, HasSubstr("'a/b'"), [&] {
    Trainer(context, test_net(2), kAdam, test_loss, {.group = all.split(0), .name = "a/b"});
  });
}

// This happens in a loop over three learning rates.
TEST(RunIdentity, a_trainer_that_has_gone_leaves_its_folder_to_nobody) {
  Two two;
  const Context context = two.context(5);
  const Group all = connect(context);
  const auto trainer = [&] {
    return std::make_unique<Trainer>(context, test_net(), kAdam, test_loss,
                                     TrainerOptions{.group = all.split(0)});
  };
  static_cast<void>(trainer());  // one that has not begun does
  trainer()->fit(feed());
  expect_error(ErrorKind::InvalidArgument, HasSubstr("TrainerOptions::name"), [&] { trainer(); });
}

TEST(RunIdentity, groups_of_workers_have_checkpoints_of_their_own) {
  Two two;
  const data::Feed data = feed();
  for (const int64_t steps : {5, 9}) {
    const std::vector<std::shared_ptr<TestNet>> nets = {test_net(1), test_net(2)};
    const auto errors =
        comm::testing::errors_of_ranks("inproc", 2, std::chrono::seconds(10), [&](comm::Communicator& comm) {
          RunConfig config = two.config;
          config.training.steps = steps;
          config.checkpoints.logdir += comm.rank() == 0 ? "-a" : "-b";
          const Context context(config, identity("worker|a:1;a:2", "worker", comm.rank()));
          const Group alone = Group(comm::testing::borrowed(comm)).split(comm.rank());
          Trainer trainer(context, nets[static_cast<size_t>(comm.rank())], kAdam, test_loss,
                          {.group = alone});
          trainer.fit(data);
          EXPECT_TRUE(trainer.group().is_chief());
          EXPECT_EQ(trainer.report().restarts, steps == 5 ? 0 : 1);
          EXPECT_EQ(trainer.step(), steps);
        });
    EXPECT_THAT(errors, testing::Each(""));
  }
}

struct WithTable : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return head(table(x.to(torch::kInt64)).mean(1)); }
  torch::nn::Embedding table =
      register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(1000, 64).sparse(true)));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(64, 4));
};

TEST(RunIdentity, an_embedding_that_wants_sparse_gradients_is_told_what_it_costs) {
  Two two;
  const Context context = two.context(5);
  testing::internal::CaptureStderr();
  const Trainer trainer(
      context, std::make_shared<WithTable>(), kAdam, [](WithTable& net, const Batch& batch) {
        return torch::cross_entropy_loss(net.forward(batch["image"].flatten(1)), batch["label"]);
      });
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("table.weight"), HasSubstr("sparse(true)"), HasSubstr("all of its 1000 rows"),
                    HasSubstr("250.0 KiB")));
}

// Two nets that are trained in turns, on one rank.
struct Pair {
  Pair(const RunConfig& config, comm::Communicator& comm)
      : context(test_context(config)),
        one(comm.split(0)),
        other(comm.split(0)),
        params_g(*g),
        params_d(*d),
        opt_g(context, params_g, kAdam, {.group = one}),
        opt_d(context, params_d, torch::optim::SGDOptions(0.1).momentum(0.9), {.group = other}),
        loop(context, {{"g", params_g, opt_g}, {"d", params_d, opt_d}}) {}

  // Makes two steps of d for one step of g.
  void step() {
    for (int64_t i = 0; i < 2; ++i) {
      for (int64_t lane = opt_d.lanes().begin; lane < opt_d.lanes().end; ++lane) {
        opt_d.zero_grad();
        const torch::Tensor x = torch::full({1, 3}, static_cast<double>(loop.step() + lane + i));
        opt_d.backward((d->forward(x) - g->forward(x).detach()).pow(2).mean());
      }
      opt_d.step();
    }
    for (int64_t lane = opt_g.lanes().begin; lane < opt_g.lanes().end; ++lane) {
      opt_g.zero_grad();
      opt_g.backward(
          (g->forward(torch::ones({1, 3})) + d->forward(torch::ones({1, 3})).detach()).pow(2).mean());
    }
    opt_g.step();
  }
  std::string run(int64_t crash_at = -1) {
    while (loop.goes_on()) {
      if (loop.step() == crash_at) throw std::runtime_error("crash");
      step();
    }
    return params_g.sha256() + params_d.sha256();
  }

  const Context context;
  const std::shared_ptr<comm::Communicator> one;
  const std::shared_ptr<comm::Communicator> other;
  // The ranks are threads, which share one random generator, so no weight is drawn from it.
  static torch::nn::Linear linear(double scale) {
    const torch::NoGradGuard no_grad;
    torch::nn::Linear net(3, 2);
    net->weight.copy_(scale * torch::arange(6, torch::kFloat).view({2, 3}));
    net->bias.fill_(scale);
    return net;
  }
  torch::nn::Linear g = linear(0.1);
  torch::nn::Linear d = linear(-0.2);
  Parameters params_g;
  Parameters params_d;
  DistributedOptimizer opt_g;
  DistributedOptimizer opt_d;
  Loop loop;
};

TEST(RunIdentity, a_loop_over_two_nets_has_one_checkpoint_of_both) {
  const TestFolder folder;
  RunConfig config = test_flags();
  config.training.lanes = 2;
  config.training.steps = 12;
  config.training.nan_guard = false;  // d diverges
  std::string straight;
  comm::testing::with_ranks("inproc", 1,
                            [&](comm::Communicator& comm) { straight = Pair(config, comm).run(); });
  config.checkpoints.logdir = folder / "run";
  config.checkpoints.every = "3";
  comm::testing::errors_of_ranks("inproc", 2, std::chrono::seconds(10),
                                 [&](comm::Communicator& comm) { Pair(config, comm).run(7); });
  EXPECT_EQ(store::CheckpointDir(config.checkpoints.logdir).load_latest().checkpoint->step, 6);
  comm::testing::with_ranks("inproc", 2, [&](comm::Communicator& comm) {
    EXPECT_EQ(Pair(config, comm).run(), straight) << comm.rank();
  });
  const store::Checkpoint last = *store::CheckpointDir(config.checkpoints.logdir).load_latest().checkpoint;
  std::vector<std::string> names;
  for (const auto& [name, tensor] : last.weights) names.push_back(name);
  EXPECT_THAT(names, testing::UnorderedElementsAre("g.weight", "g.bias", "d.weight", "d.bias"));
}

TEST(RunIdentity, a_loop_over_two_nets_does_not_take_the_checkpoint_of_one) {
  const TestFolder folder;
  RunConfig config = test_flags();
  config.training.lanes = 1;
  config.training.steps = 3;
  config.checkpoints.logdir = folder / "run";
  {
    const Context context = test_context(config);
    torch::nn::Linear net(3, 2);
    Parameters params(*net);
    DistributedOptimizer opt(context, params, kAdam);
    Loop loop(context, params, opt);
    while (loop.goes_on()) {
      opt.zero_grad();
      opt.backward(net->forward(torch::ones({1, 3})).mean());
      opt.step();
    }
  }
  const auto errors = comm::testing::errors_of_ranks(
      "inproc", 1, std::chrono::seconds(10), [&](comm::Communicator& comm) { Pair(config, comm).run(); });
  EXPECT_THAT(errors, testing::Each(AllOf(HasSubstr("the net 'g'"), HasSubstr("--resume never"))));
}

TEST(RunIdentity, a_second_loop_in_one_log_directory_needs_a_name) {
  const TestFolder folder;
  RunConfig config = test_flags();
  config.checkpoints.logdir = folder / "run";
  const Context context = test_context(config);
  torch::nn::Linear one(3, 2);
  torch::nn::Linear two(3, 2);
  Parameters params_one(*one);
  Parameters params_two(*two);
  const Group all = connect(context);
  DistributedOptimizer opt_one(context, params_one, kAdam, {.group = all.split(0)});
  DistributedOptimizer opt_two(context, params_two, kAdam, {.group = all.split(0)});
  Loop first(context, params_one, opt_one);
  EXPECT_TRUE(first.goes_on());
  EXPECT_TRUE(Loop(context, params_two, opt_two, {.name = "two"}).goes_on());
  expect_error(ErrorKind::InvalidArgument, HasSubstr("LoopOptions::name"),
               [&] { Loop(context, params_two, opt_two); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("two nets of a loop are called 'a'"), [&] {
    Loop(context, {{"a", params_one, opt_one}, {"a", params_two, opt_two}}, {.name = "three"});
  });
}

}  // namespace
}  // namespace tutti::run_identity_test

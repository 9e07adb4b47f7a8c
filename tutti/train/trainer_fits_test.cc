// Tests how several fits of one program follow each other: which data each one sees, and how a hook ends one.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/comm/test_ranks.h"
#include "tutti/store/checkpoint.h"
#include "tutti/train/test_trainer.h"

namespace tutti::trainer_fits_test {
namespace {

using comm::testing::with_ranks;
using testing::HasSubstr;

using Seen = std::vector<int64_t>;  // examples, in the order in which they were trained on

// Like test_feed(), with the number of each example; `first` is the number of the first one.
data::Feed numbered_feed(int64_t examples, int64_t first = 0) {
  const Batch batch = test_feed(examples).read(std::vector<int64_t>([&] {
    std::vector<int64_t> all(static_cast<size_t>(examples));
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
    return all;
  }()));
  return data::Feed(data::from_tensors({{"image", batch["image"]},
                                        {"label", batch["label"]},
                                        {"number", torch::arange(first, first + examples)}}));
}

class WriteDown final : public Hook {
 public:
  explicit WriteDown(Seen& seen, int64_t crash_after) : seen_(seen), crash_after_(crash_after) {}
  void after_lane(Training&, int64_t, const Batch& batch, const LossOutput&) override {
    const torch::Tensor numbers = batch["number"];
    for (int64_t i = 0; i < numbers.numel(); ++i) seen_.push_back(numbers[i].item<int64_t>());
  }
  // The checkpoint of the previous step has been saved at this point.
  void before_step(Training& training) override {
    if (training.step == crash_after_) throw std::runtime_error("crash");
  }

 private:
  Seen& seen_;
  const int64_t crash_after_;
};

struct Trained {
  Seen seen;
  std::string hash;
};

// Runs the fits in one program, which may end with an exception after `crash_after` steps.
Trained run_fits(const std::function<void(Trainer&)>& fits, const std::string& logdir = "",
                 int64_t crash_after = -1) {
  RunConfig config = test_flags();
  config.training.lanes = 2;
  config.training.batch = 3;
  config.checkpoints.logdir = logdir;
  config.checkpoints.every = "1";
  const Context context = test_context(config);
  Trained trained;
  Trainer trainer(context, test_net(), kAdam, test_loss);
  trainer.add_hook(std::make_unique<WriteDown>(trained.seen, crash_after));
  try {
    fits(trainer);
  } catch (const std::runtime_error&) {
    if (crash_after < 0) throw;
  }
  trained.hash = trainer.parameters().sha256();
  return trained;
}

TEST(Fits, several_short_fits_see_the_data_of_a_long_one) {
  const data::Feed feed = numbered_feed(40);
  const Trained three_epochs =
      run_fits([&](Trainer& trainer) { trainer.fit(feed.shuffle(), {.epochs = 3}); });
  const Trained by_epoch = run_fits([&](Trainer& trainer) {
    for (int epoch = 0; epoch < 3; ++epoch) trainer.fit(feed.shuffle(), {.epochs = 1});
  });
  EXPECT_EQ(by_epoch.seen, three_epochs.seen);
  EXPECT_EQ(by_epoch.hash, three_epochs.hash);
  // An epoch has 6 steps, so some fits cross its end.
  const Trained by_steps = run_fits([&](Trainer& trainer) {
    for (int fit = 0; fit < 9; ++fit) {
      trainer.fit(feed.shuffle(), {.steps = 2});
      trainer.evaluate(feed, {});
    }
  });
  EXPECT_EQ(by_steps.seen, three_epochs.seen);
  EXPECT_EQ(by_steps.hash, three_epochs.hash);
}

TEST(Fits, a_source_that_is_made_anew_for_each_fit_is_gone_through_all_the_same) {
  const Trained together =
      run_fits([&](Trainer& trainer) { trainer.fit(numbered_feed(40).shuffle(), {.epochs = 2}); });
  const Trained apart = run_fits([&](Trainer& trainer) {
    for (int epoch = 0; epoch < 2; ++epoch) trainer.fit(numbered_feed(40).shuffle(), {.epochs = 1});
  });
  EXPECT_EQ(apart.seen, together.seen);
}

TEST(Fits, from_start_sees_the_same_data_again) {
  const data::Feed feed = numbered_feed(40);
  const Seen seen = run_fits([&](Trainer& trainer) {
                      trainer.fit(feed.shuffle(), {.steps = 2});
                      trainer.fit(feed.shuffle(), {.steps = 2, .from_start = true});
                      trainer.fit(feed.shuffle(), {.steps = 2});
                    }).seen;
  const Seen straight = run_fits([&](Trainer& trainer) { trainer.fit(feed.shuffle(), {.steps = 4}); }).seen;
  const auto part = [](const Seen& all, size_t begin, size_t end) {
    return Seen(all.begin() + static_cast<ptrdiff_t>(begin), all.begin() + static_cast<ptrdiff_t>(end));
  };
  EXPECT_EQ(part(seen, 0, 12), part(straight, 0, 12));
  EXPECT_EQ(part(seen, 12, 24), part(straight, 0, 12));
  EXPECT_EQ(part(seen, 24, 36), part(straight, 12, 24));
}

// Alternates between feeds, as in a curriculum or a GAN: feeds of one size, or parts of one source.
void alternate(Trainer& trainer, const data::Feed& one, const data::Feed& other) {
  for (int round = 0; round < 4; ++round) {
    trainer.fit(one.shuffle(), {.steps = 2});
    trainer.fit(other.shuffle(), {.steps = 1});
    trainer.fit(one.take(20), {.steps = 1});
  }
}

Seen of_feed(const Seen& seen, int64_t first) {
  Seen part;
  std::copy_if(seen.begin(), seen.end(), std::back_inserter(part),
               [&](int64_t n) { return (n >= 100) == (first >= 100); });
  return part;
}

TEST(Fits, feeds_that_take_turns_are_each_gone_through_by_themselves) {
  const data::Feed one = numbered_feed(40);
  const data::Feed other = numbered_feed(40, 100);
  const Seen seen = run_fits([&](Trainer& trainer) { alternate(trainer, one, other); }).seen;
  EXPECT_EQ(of_feed(seen, 100),
            run_fits([&](Trainer& trainer) { trainer.fit(other.shuffle(), {.steps = 4}); }).seen);
  const Seen shuffled = run_fits([&](Trainer& trainer) { trainer.fit(one.shuffle(), {.steps = 8}); }).seen;
  const Seen first = run_fits([&](Trainer& trainer) { trainer.fit(one.take(20), {.steps = 4}); }).seen;
  const Seen of_one = of_feed(seen, 0);
  Seen expected;
  for (ptrdiff_t round = 0; round < 4; ++round) {
    expected.insert(expected.end(), shuffled.begin() + 12 * round, shuffled.begin() + 12 * (round + 1));
    expected.insert(expected.end(), first.begin() + 6 * round, first.begin() + 6 * (round + 1));
  }
  EXPECT_EQ(of_one, expected);
}

TEST(Fits, go_on_in_the_same_data_after_a_resume) {
  const data::Feed one = numbered_feed(40);
  const data::Feed other = numbered_feed(40, 100);
  const auto fits = [&](Trainer& trainer) { alternate(trainer, one, other); };
  const Trained straight = run_fits(fits);
  for (const int64_t crash : {1, 3, 4, 9, 14}) {
    const TestFolder folder;
    const Seen before = run_fits(fits, folder / "run", crash).seen;
    const Trained after = run_fits(fits, folder / "run");
    Seen both = before;
    both.insert(both.end(), after.seen.begin(), after.seen.end());
    EXPECT_EQ(both, straight.seen) << crash;
    EXPECT_EQ(after.hash, straight.hash) << crash;
  }
}

TEST(Fits, a_checkpoint_that_knows_nothing_of_feeds_goes_on_in_its_fit) {
  const TestFolder folder;
  const data::Feed feed = numbered_feed(40);
  const auto fits = [&](Trainer& trainer) {
    trainer.fit(numbered_feed(20, 100).shuffle(), {.steps = 2});
    trainer.fit(feed.shuffle(), {.steps = 5});
  };
  const Trained straight = run_fits(fits);
  run_fits(fits, folder / "run", 4);
  store::CheckpointDir checkpoints(folder / "run");
  store::Checkpoint old = *checkpoints.load_latest().checkpoint;
  old.state.erase("feeds");
  old.state.erase("stopped");
  checkpoints.save(old);
  EXPECT_EQ(run_fits(fits, folder / "run").hash, straight.hash);
}

// Ends the training after a step.
std::unique_ptr<Hook> stop_at(int64_t step) {
  return std::make_unique<AfterStep>([step](Training& training) {
    if (training.step == step) training.stop_reason = "enough";
  });
}

TEST(Fits, a_hook_ends_one_at_the_same_step_on_any_number_of_workers) {
  RunConfig config = test_flags();
  config.training.lanes = 4;
  config.training.steps = 100;
  for (const std::string backend : {"inproc", "plain", "shm"}) {
    std::vector<std::string> hashes;
    for (const int world : {1, 2, 4}) {
      std::vector<std::string> of_ranks(static_cast<size_t>(world));
      std::vector<std::shared_ptr<TestNet>> nets;
      for (int rank = 0; rank < world; ++rank) nets.push_back(test_net());
      const data::Feed feed = test_feed();
      with_ranks(backend, world, [&](comm::Communicator& comm) {
        const Context context = test_context(config);
        Trainer trainer(context, nets[static_cast<size_t>(comm.rank())], kAdam, test_loss,
                        {.group = comm::testing::borrowed(comm)});
        trainer.add_hook(stop_at(7));
        trainer.fit(feed.shuffle());
        EXPECT_EQ(trainer.step(), 8) << world;
        of_ranks[static_cast<size_t>(comm.rank())] = trainer.parameters().sha256();
      });
      hashes.insert(hashes.end(), of_ranks.begin(), of_ranks.end());
    }
    EXPECT_EQ(std::count(hashes.begin(), hashes.end(), hashes[0]), 7) << backend;
  }
}

TEST(Fits, one_that_a_hook_has_ended_stays_ended_when_the_program_is_run_again) {
  for (const std::string every : {"0", "1", "7", "8"}) {
    const TestFolder folder;
    RunConfig config = test_flags();
    config.checkpoints.logdir = folder / "run";
    config.checkpoints.every = every;
    const data::Feed feed = test_feed();
    const auto run = [&] {
      const Context context = test_context(config);
      Trainer trainer(context, test_net(), kAdam, test_loss);
      trainer.add_hook(stop_at(7));
      trainer.fit(feed.shuffle(), {.steps = 50});
      const int64_t first = trainer.step();
      trainer.fit(feed.shuffle(), {.steps = 5});
      return std::tuple(first, trainer.step(), trainer.parameters().sha256());
    };
    const auto once = run();
    EXPECT_EQ(std::get<0>(once), 8);
    EXPECT_EQ(std::get<1>(once), 13);
    EXPECT_EQ(std::get<1>(run()), 13) << every;
    EXPECT_EQ(std::get<2>(run()), std::get<2>(once)) << every;
  }
}

// Asks to end the fit after step 7. Then calls `body` once, at a given point of the program.
class StopAndThen final : public Hook {
 public:
  enum class When { AfterStep, BeforeStep, AfterLane };
  StopAndThen(When when, std::function<void()> body) : when_(when), body_(std::move(body)) {}
  void after_step(Training& training, const StepResult&) override {
    if (training.step != 7) return;
    training.stop_reason = "enough";
    call(When::AfterStep);
  }
  void before_step(Training& training) override {
    if (training.step == 7) call(When::BeforeStep);
  }
  void after_lane(Training& training, int64_t, const Batch&, const LossOutput&) override {
    if (training.step == 7) call(When::AfterLane);
  }

 private:
  void call(When when) {
    if (when == when_ && body_) std::exchange(body_, {})();
  }

  const When when_;
  std::function<void()> body_;
};

TEST(Fits, a_hook_that_ends_one_is_heeded_after_a_crash_or_a_signal_in_between) {
  using When = StopAndThen::When;
  const auto run = [](const std::string& logdir, When when, const std::function<void()>& body) {
    RunConfig config = test_flags();
    config.checkpoints.logdir = logdir;
    config.checkpoints.every = "1";
    config.training.steps = 50;
    const Context context = test_context(config);
    Trainer trainer(context, test_net(), kAdam, test_loss);
    trainer.add_hook(std::make_unique<StopAndThen>(when, body));
    try {
      trainer.fit(test_feed().shuffle());
    } catch (const Interrupted&) {
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "crash");
    }
    return std::pair(trainer.step(), trainer.parameters().sha256());
  };
  const auto expected = run("", When::AfterStep, {});
  EXPECT_EQ(expected.first, 8);
  const std::vector<std::function<void()>> interruptions = {[] { std::raise(SIGTERM); },
                                                            [] { throw std::runtime_error("crash"); }};
  for (const auto& interrupt : interruptions) {
    for (const When when : {When::AfterStep, When::BeforeStep, When::AfterLane}) {
      const TestFolder folder;
      run(folder / "run", when, interrupt);
      EXPECT_EQ(run(folder / "run", when, {}), expected) << static_cast<int>(when);
    }
  }
}

TEST(Fits, the_last_checkpoint_of_one_that_a_hook_has_ended_says_so) {
  const TestFolder folder;
  RunConfig config = test_flags();
  config.checkpoints.logdir = folder / "run";
  config.training.steps = 50;
  const auto run = [&] {
    const Context context = test_context(config);
    Trainer trainer(context, test_net(), kAdam, test_loss);
    trainer.add_hook(stop_at(7));
    trainer.fit(test_feed().shuffle());
    return std::pair(trainer.step(), trainer.parameters().sha256());
  };
  const auto once = run();
  for (int again = 0; again < 2; ++again) EXPECT_EQ(run(), once);
}

TEST(Fits, unfreezing_a_parameter_between_two_is_an_error_that_names_it) {
  const Context context = test_context(test_flags());
  const auto net = test_net();
  net->conv->weight.requires_grad_(false);
  Trainer trainer(context, net, kAdam, test_loss);
  trainer.fit(test_feed(), {.steps = 1});
  net->conv->weight.requires_grad_(true);
  expect_error(ErrorKind::InvalidArgument, testing::AllOf(HasSubstr("conv.weight"), HasSubstr("unfrozen")),
               [&] { trainer.fit(test_feed(), {.steps = 1}); });
}

// A mixture of a part of one source and a part of another, made anew on each call.
data::Feed mixed_feed(const data::Feed& one, const data::Feed& other, double weight = 2) {
  const auto brighter = [](const Batch& batch) {
    return Batch({{"image", batch["image"] + 0.5}, {"label", batch["label"]}, {"number", batch["number"]}});
  };
  return data::mix({one.split({0.75, 0.25})[0].map(brighter), other.skip(5)}, {weight, 1}).shuffle();
}

TEST(Fits, a_mixture_is_resumed_with_the_same_bits_at_any_number_of_workers) {
  const data::Feed one = numbered_feed(40);
  const data::Feed other = numbered_feed(21, 100);
  std::vector<std::string> hashes;
  std::vector<Seen> all_seen;
  const std::vector<data::Feed> feeds = {mixed_feed(one, other), mixed_feed(one, other)};
  // Trains for 20 steps in two fits, or until it crashes. Ranks are threads, which share LibTorch's random
  // generator: the nets are made before.
  using Nets = std::vector<std::shared_ptr<TestNet>>;
  const auto train_on = [&](const Nets& nets, comm::Communicator& comm, const std::string& logdir,
                            int64_t crash_after) {
    RunConfig config = test_flags();
    config.training.lanes = 2;
    config.training.batch = 3;
    config.checkpoints.logdir = logdir;
    config.checkpoints.every = logdir.empty() ? "0" : "4";
    const Context context = test_context(config);
    Seen seen;
    Trainer trainer(context, nets[static_cast<size_t>(comm.rank())], kAdam, test_loss,
                    {.group = comm::testing::borrowed(comm)});
    trainer.add_hook(std::make_unique<WriteDown>(seen, crash_after));
    trainer.fit(feeds[0], {.steps = 12});
    trainer.fit(feeds[1], {.steps = 8});
    if (comm.rank() != 0) return;
    hashes.push_back(trainer.parameters().sha256());
    if (comm.world() == 1) all_seen.push_back(seen);
  };
  for (const int world : {1, 2}) {
    const TestFolder folder;
    const auto run = [&](const std::string& logdir, int64_t crash_after) {
      const Nets nets = {test_net(), test_net()};
      return comm::testing::errors_of_ranks(
          "inproc", world, std::chrono::seconds(20),
          [&](comm::Communicator& comm) { train_on(nets, comm, logdir, crash_after); });
    };
    EXPECT_THAT(run("", -1), testing::Each(""));
    for (const int64_t crash_after : {6, 14})
      EXPECT_THAT(run(folder / "run", crash_after), testing::Each(testing::Ne("")));
    EXPECT_THAT(run(folder / "run", -1), testing::Each(""));
  }
  EXPECT_THAT(hashes, testing::AllOf(testing::SizeIs(4), testing::Each(hashes.at(0))));
  // 30 examples of `one` and 16 of `other`, at 2 : 1. The mixture ends when both are read: after 32 and 16.
  const Seen& seen = all_seen.at(0);
  ASSERT_EQ(seen.size(), 120U);
  const Seen epoch(seen.begin(), seen.begin() + 48);
  EXPECT_EQ(std::count_if(epoch.begin(), epoch.end(), [](int64_t number) { return number >= 105; }), 16);
  EXPECT_EQ(std::set<int64_t>(epoch.begin(), epoch.end()).size(), 46U);
}

TEST(Fits, a_run_is_not_resumed_with_another_mixture) {
  const TestFolder folder;
  const data::Feed one = numbered_feed(40);
  const data::Feed other = numbered_feed(21, 100);
  const auto train_on = [&](const data::Feed& feed, int64_t crash_after = -1) {
    run_fits([&](Trainer& trainer) { trainer.fit(feed, {.steps = 4}); }, folder / "run", crash_after);
  };
  train_on(mixed_feed(one, other), 2);
  for (const data::Feed& feed :
       {mixed_feed(one, other, 3), mixed_feed(one.take(39), other), numbered_feed(48).shuffle()})
    EXPECT_THAT(error_of(ErrorKind::InvalidArgument, [&] { train_on(feed); }), HasSubstr("other data"));
}

TEST(Fits, different_mixtures_of_the_same_sources_are_different_feeds) {
  const data::Feed one = numbered_feed(40);
  const auto seen_on = [&](const data::Feed& first, const data::Feed& second) {
    return run_fits([&](Trainer& trainer) {
             trainer.fit(first, {.steps = 1});
             trainer.fit(second, {.steps = 1});
           })
        .seen;
  };
  const auto halves = one.split({0.5, 0.5}, {.order = data::Order::Sequential});
  EXPECT_EQ(seen_on(halves[0], halves[1]), (Seen{0, 1, 2, 3, 4, 5, 20, 21, 22, 23, 24, 25}));
  EXPECT_EQ(seen_on(one.skip(20), one.skip(20)), (Seen{20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31}));
}

}  // namespace
}  // namespace tutti::trainer_fits_test

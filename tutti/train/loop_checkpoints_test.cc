#include "tutti/train/loop_checkpoints.h"

#include <chrono>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/comm/test_ranks.h"
#include "tutti/store/checkpoint.h"
#include "tutti/train/test_training.h"

namespace tutti {
namespace {

using comm::testing::errors_of_ranks;
using comm::testing::with_ranks;
using std::chrono::milliseconds;
using ::testing::Each;
using ::testing::HasSubstr;

// A loop of one's own on one of the ranks.
struct Loop {
  Loop(comm::Communicator& comm, const Flags& flags)
      : context(test_context(flags)),
        params(*net),
        opt(context, params, torch::optim::AdamOptions(0.1),
            {.communicator = std::shared_ptr<comm::Communicator>(&comm, [](comm::Communicator*) {})}),
        checkpoints(context, params, opt) {}

  void step() {
    opt.zero_grad();
    opt.backward(net->forward(torch::ones({1, 3})).mean());
    opt.step();
  }

  const Context context;
  torch::nn::Linear net{3, 2};
  Parameters params;
  DistributedOptimizer opt;
  LoopCheckpoints checkpoints;
};

Flags flags_for(const std::string& logdir, const std::string& every = "0") {
  Flags flags = test_flags();
  flags.lanes = 2;
  flags.logdir = logdir;
  flags.checkpoint_every = every;
  flags.timeout = 0.3;
  return flags;
}

constexpr milliseconds kTimeout{300};

TEST(LoopCheckpoints, all_wait_for_the_chief_that_writes_and_longer_than_for_one_another) {
  const TestFolder folder;
  const auto errors = errors_of_ranks("plain", 2, kTimeout, [&](comm::Communicator& comm) {
    Loop loop(comm, flags_for(folder / "run"));
    loop.checkpoints.resume();
    loop.step();
    if (comm.rank() == 0) std::this_thread::sleep_for(2 * kTimeout);
    loop.checkpoints.save(1);
    EXPECT_EQ(store::CheckpointDir(folder / "run").steps(), std::vector<int64_t>{1}) << comm.rank();
    loop.step();
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(LoopCheckpoints, a_chief_that_cannot_write_is_what_all_hear_of) {
  const TestFolder folder;
  const std::string file = folder.write("file", "no folder");
  const auto errors = errors_of_ranks("plain", 2, kTimeout, [&](comm::Communicator& comm) {
    Loop loop(comm, flags_for(file));
    loop.checkpoints.resume();
    loop.step();
    loop.checkpoints.save(1);
  });
  EXPECT_THAT(errors, Each(HasSubstr(file)));
}

TEST(LoopCheckpoints, a_chief_that_cannot_go_on_is_what_all_hear_of) {
  const TestFolder folder;
  Flags flags = flags_for(folder / "run");
  flags.resume = "must";
  const auto errors = errors_of_ranks(
      "plain", 2, kTimeout, [&](comm::Communicator& comm) { Loop(comm, flags).checkpoints.resume(); });
  EXPECT_THAT(errors, Each(HasSubstr("there is no checkpoint")));
}

TEST(LoopCheckpoints, go_on_on_all_workers_where_they_were) {
  const TestFolder folder;
  std::vector<std::string> hashes(4);
  for (const size_t run : {0U, 1U}) {
    with_ranks("plain", 2, [&](comm::Communicator& comm) {
      Loop loop(comm, flags_for(folder / "run"));
      const int64_t steps = loop.checkpoints.resume();
      EXPECT_EQ(steps, run == 0 ? 0 : 3);
      for (int64_t step = steps; step < 3; ++step) loop.step();
      loop.checkpoints.save(3);
      hashes[2 * run + static_cast<size_t>(comm.rank())] = loop.params.sha256();
      EXPECT_EQ(loop.opt.steps(), 3);
    });
  }
  EXPECT_THAT(hashes, Each(hashes[0]));
}

// Clocks do not agree to the step.
TEST(LoopCheckpoints, every_so_many_seconds_all_save_after_the_same_step) {
  const TestFolder folder;
  with_ranks("plain", 2, [&](comm::Communicator& comm) {
    Loop loop(comm, flags_for(folder / "run", "0.002s"));
    int64_t step = loop.checkpoints.resume();
    while (step < 200) {
      loop.step();
      loop.checkpoints.after_step(++step);
    }
  });
  EXPECT_FALSE(store::CheckpointDir(folder / "run").steps().empty());
}

TEST(LoopCheckpoints, nobody_is_asked_for_anything_where_nothing_is_written) {
  Flags flags = flags_for("", "1");
  flags.optimizer_state = "sharded";
  const auto errors = errors_of_ranks("plain", 2, kTimeout, [&](comm::Communicator& comm) {
    Loop loop(comm, flags);
    loop.step();
    if (comm.rank() == 0) loop.checkpoints.after_step(1);
    loop.step();
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(LoopCheckpoints, weights_that_are_no_numbers_are_not_saved) {
  const TestFolder folder;
  for (const bool guard : {true, false}) {
    Flags flags = flags_for(folder / "run");
    flags.nan_guard = guard;
    with_ranks("inproc", 1, [&](comm::Communicator& comm) {
      Loop loop(comm, flags);
      loop.net->weight.detach()[1][1].fill_(std::nanf(""));
      if (guard) {
        expect_error(ErrorKind::InvalidArgument,
                     HasSubstr("weights are no longer finite after step 7: not saved"),
                     [&] { loop.checkpoints.save(7); });
      } else {
        loop.checkpoints.save(7);
      }
    });
    EXPECT_EQ(store::CheckpointDir(folder / "run").steps().empty(), guard);
  }
}

}  // namespace
}  // namespace tutti

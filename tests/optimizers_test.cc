// Tests groups of parameters and optimisers of one's own in all ways of training, as processes.
#include <filesystem>

#include <gmock/gmock.h>

#include "tests/served.h"
#include "tests/together.h"
#include "tutti/base/error.h"

namespace tutti::testing::optimizers_test {
namespace {

using ::testing::HasSubstr;

Flags flags_of(const std::string& net, const Flags& optimizer) {
  return with({"--net", net, "--layout", "contiguous", "--lanes", "6", "--batch", "3", "--steps", "20",
               "--clip-norm", "0.5"},
              optimizer);
}

// All have the bits of one worker. The servers hold pieces that end within groups.
void expect_same_in_all_ways(const Flags& flags, const TestFolder& folder, bool also_servers) {
  const std::string alone = hash_of(on_workers(1, flags), folder);
  for (const int workers : {2, 3}) {
    EXPECT_EQ(hash_of(on_workers(workers, flags), folder), alone) << workers;
    EXPECT_EQ(hash_of(with_master(workers + 1, flags), folder), alone) << workers;
  }
  EXPECT_EQ(hash_of(on_workers(2, with(flags, {"--optimizer-state", "replicated"})), folder), alone);
  if (!also_servers) return;
  EXPECT_EQ(hash_of(on_workers(3, with(flags, {"--optimizer-state", "sharded", "--comm", "tcp"})), folder),
            alone);
  const Flags sync = with(flags, {"--strategy", "ps-sync"});
  EXPECT_EQ(hash_of(on_servers(1, 1, sync), folder), alone);
  EXPECT_EQ(hash_of(on_servers(2, 2, sync), folder), alone);
  EXPECT_EQ(hash_of(on_servers(3, 2, with(sync, {"--placement", "split:1K"})), folder), alone);
}

TEST(OptimizersTogether, groups_have_the_same_bits_in_all_ways_of_training) {
  const TestFolder folder;
  for (const std::string net : {"normed", "odd"})
    expect_same_in_all_ways(flags_of(net, {"--optimizer", "grouped"}), folder, true);
}

TEST(OptimizersTogether, frozen_parameters_have_the_same_bits_in_all_ways_of_training) {
  const TestFolder folder;
  const Flags flags = flags_of("odd", {"--optimizer", "grouped", "--frozen"});
  expect_same_in_all_ways(flags, folder, true);
  EXPECT_NE(hash_of(on_workers(1, flags), folder),
            hash_of(on_workers(1, flags_of("odd", {"--optimizer", "grouped"})), folder));
}

TEST(OptimizersTogether, an_elementwise_one_has_the_same_bits_in_all_ways_of_training) {
  const TestFolder folder;
  expect_same_in_all_ways(flags_of("odd", {"--optimizer", "lion"}), folder, true);
}

TEST(OptimizersTogether, ftrl_has_the_same_bits_in_all_ways_of_training) {
  const TestFolder folder;
  expect_same_in_all_ways(flags_of("odd", {"--optimizer", "ftrl"}), folder, true);
}

TEST(OptimizersTogether, a_replicated_one_has_the_same_bits_without_servers) {
  const TestFolder folder;
  expect_same_in_all_ways(flags_of("odd", {"--optimizer", "replicated"}), folder, false);
}

TEST(OptimizersTogether, loops_of_ones_own_and_one_asynchronous_worker_have_the_bits_of_a_trainer) {
  const TestFolder folder;
  for (const Flags& optimizer : {Flags{"--optimizer", "grouped", "--frozen"}, Flags{"--optimizer", "lion"}}) {
    const Flags flags = with({"--net", "odd", "--lanes", "4", "--batch", "3", "--steps", "20"}, optimizer);
    const std::string alone = hash_of(on_workers(1, flags), folder);
    for (const int workers : {1, 3})
      EXPECT_EQ(hash_of(on_workers(workers, with(flags, {"--own-loop"})), folder), alone) << workers;
    const Flags async = with(flags, {"--strategy", "ps-async", "--staleness", "0"});
    EXPECT_EQ(hash_of(on_servers(2, 1, async), folder), alone);
  }
}

TEST(OptimizersTogether, resume_with_another_number_of_workers_and_another_way_of_training) {
  const TestFolder folder;
  for (const Flags& optimizer : {Flags{"--optimizer", "grouped", "--frozen"}, Flags{"--optimizer", "lion"},
                                 Flags{"--optimizer", "ftrl"}}) {
    const Flags flags = flags_of("normed", optimizer);
    const std::string straight = hash_of(on_workers(1, flags), folder);
    const Flags kept = with(flags, {"--logdir", folder / optimizer[1]});
    report_of(on_workers(2, with(kept, {"--steps", "5"})), folder);
    report_of(on_servers(2, 2, with(kept, {"--steps", "10", "--strategy", "ps-sync"})), folder);
    report_of(with_master(3, with(kept, {"--steps", "15"})), folder);
    EXPECT_EQ(hash_of(on_workers(3, kept), folder), straight) << optimizer[1];
  }
  const Flags flags = flags_of("odd", {"--optimizer", "replicated"});
  const Flags kept = with(flags, {"--logdir", folder / "replicated"});
  report_of(on_workers(3, with(kept, {"--steps", "10"})), folder);
  EXPECT_EQ(hash_of(on_workers(2, kept), folder), hash_of(on_workers(1, flags), folder));
}

// Only the chief reads the checkpoint, whose frozen parameters are others than those that the program makes.
TEST(OptimizersTogether, frozen_parameters_of_a_checkpoint_reach_all_workers) {
  const TestFolder folder;
  const Flags before = flags_of("odd", {"--optimizer", "grouped", "--logdir", folder / "body"});
  report_of(on_workers(1, before), folder);
  constexpr auto kCopy =
      std::filesystem::copy_options::recursive | std::filesystem::copy_options::copy_symlinks;
  std::string alone;
  for (const std::string way : {"alone", "allreduce", "ps-sync", "in-graph"}) {
    const std::string logdir = folder / way;
    std::filesystem::copy(folder / "body", logdir, kCopy);
    const Flags flags =
        flags_of("odd", {"--optimizer", "grouped", "--frozen", "--resume", "weights", "--logdir", logdir});
    const Job job = way == "ps-sync"    ? on_servers(2, 2, with(flags, {"--strategy", way}))
                    : way == "in-graph" ? with_master(3, flags)
                                        : on_workers(way == "alone" ? 1 : 2, flags);
    const std::string hash = hash_of(job, folder);
    if (way == "alone") alone = hash;
    EXPECT_EQ(hash, alone) << way;
  }
}

TEST(OptimizersTogether, unsupported_combinations_are_errors_that_say_what_to_do) {
  const auto expect_refused = [](const Flags& command, const char* text) {
    const ProgramResult result = run_program(command);
    EXPECT_EQ(result.exit_code, exit_code(ErrorKind::InvalidArgument)) << result.err;
    EXPECT_THAT(result.err, HasSubstr(text));
  };
  const Flags replicated = flags_of("odd", {"--optimizer", "replicated"});
  expect_refused(served(1, 2, with(replicated, {"--strategy", "ps-sync"})),
                 "--strategy ps-sync cannot be used with the optimiser whole");
  expect_refused(training(2, with(replicated, {"--optimizer-state", "sharded"})),
                 "--optimizer-state sharded cannot be used with the optimiser whole");
  const Flags lion = flags_of("odd", {"--optimizer", "lion", "--strategy", "ps-sync"});
  expect_refused(served(1, 2, with(lion, {"--server-beta", "0"})), "Program::optimizers");
  expect_refused(served(1, 2, with(lion, {"--server-beta", "0.5"})),
                 "beta2 0.5 here, but 0.99 in the task that trains");
}

}  // namespace
}  // namespace tutti::testing::optimizers_test

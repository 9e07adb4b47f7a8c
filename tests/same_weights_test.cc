// Tests that a worker whose weights are others is found, and `tutti diff`, which finds where two runs part.
#include <filesystem>

#include <gmock/gmock.h>

#include "tests/together.h"
#include "tutti/base/error.h"
#include "tutti/store/weight_hashes.h"

namespace tutti::testing::same_weights_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::UnorderedElementsAre;

const Flags kRun = {"--net", "normed", "--lanes", "6", "--batch", "2", "--steps", "12"};

ProgramResult diff(const std::string& one, const std::string& other) {
  return run_program({program_path("tutti"), "diff", one, other});
}

// On one host, each worker owns a part of the weights and sends it to the others after each step, so a wrong
// copy lasts for one step. Over TCP, each worker updates all weights, so a wrong copy stays.
struct Way {
  std::string name;
  Flags flags;
  int64_t lasts;  // how many steps after the fault the weights are compared
};

class SameWeights : public ::testing::TestWithParam<Way> {};

TEST_P(SameWeights, are_compared_after_steps_and_the_worker_with_others_is_named) {
  const TestFolder folder;
  const Flags flags = with(with(kRun, GetParam().flags), {"--logdir", folder / "run", "--hash-every", "2"});
  const ProgramResult result =
      run_program(training(3, with(flags, {"--flip-at", std::to_string(6 - GetParam().lasts)})));
  EXPECT_EQ(result.exit_code, exit_code(ErrorKind::DataLoss)) << result.err;
  EXPECT_THAT(result.err,
              HasSubstr("after step 6, the weights of rank 1 (worker/1) are not those of the other"));
  EXPECT_THAT(store::read_weight_hashes(folder / "run"), UnorderedElementsAre(Key(2), Key(4)));
  EXPECT_FALSE(std::filesystem::exists(folder / "run/latest"));
}

TEST_P(SameWeights, are_compared_before_they_are_saved_and_the_run_goes_on_without_the_fault) {
  const TestFolder folder;
  const Flags flags = with(kRun, GetParam().flags);
  const std::string straight = hash_of(on_workers(1, flags), folder);
  const Flags saving = with(flags, {"--logdir", folder / "run", "--checkpoint-every", "4"});
  const ProgramResult result = run_program(
      training(3, with(saving, {"--flip-at", std::to_string(8 - GetParam().lasts), "--flip-on", "2"})));
  EXPECT_EQ(result.exit_code, exit_code(ErrorKind::DataLoss)) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("after step 8"), HasSubstr("rank 2 (worker/2)")));
  EXPECT_TRUE(std::filesystem::exists(folder / "run/ckpt-4"));
  EXPECT_FALSE(std::filesystem::exists(folder / "run/ckpt-8"));
  EXPECT_EQ(hash_of(on_workers(2, saving), folder), straight);
}

INSTANTIATE_TEST_SUITE_P(Ways, SameWeights,
                         ::testing::Values(Way{"shm", {"--comm", "shm"}, 0}, Way{"tcp", {"--comm", "tcp"}, 1},
                                           Way{"own_loop", {"--own-loop"}, 0}),
                         [](const auto& info) { return info.param.name; });

TEST(Diff, finds_no_difference_between_runs_of_other_numbers_of_workers_and_a_resumed_one) {
  const TestFolder folder;
  const auto run = [&](const std::string& name) {
    return with(kRun, {"--logdir", folder / name, "--hash-every", "3", "--checkpoint-every", "5"});
  };
  EXPECT_EQ(run_job(on_workers(1, run("one"))).exit_code, 0);
  EXPECT_EQ(run_job(on_workers(2, with(run("other"), {"--stop-after", "7"}))).exit_code, 0);
  EXPECT_EQ(run_job(on_workers(3, run("other"))).exit_code, 0);
  const ProgramResult result = diff(folder / "one", folder / "other");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("the same weights at all 6 steps that both have recorded, from 3 to 12"));
}

TEST(Diff, finds_the_step_and_the_tensors) {
  const TestFolder folder;
  const auto run = [&](const std::string& name, const Flags& more) {
    const Flags flags = {"--logdir", folder / name, "--hash-every", "1", "--checkpoint-every", "4"};
    EXPECT_EQ(run_job(on_workers(1, with(with(kRun, flags), more))).exit_code, 0);
  };
  run("good", {});
  run("early", {"--flip-at", "4", "--flip-on", "0"});
  run("late", {"--flip-at", "10", "--flip-on", "0"});
  const ProgramResult early = diff(folder / "good", folder / "early");
  EXPECT_EQ(early.exit_code, 1) << early.err;
  EXPECT_THAT(early.out, AllOf(HasSubstr("the same weights up to step 3, and others at step 4\n"),
                               HasSubstr(": 1 of "), HasSubstr("by at most ")));
  const ProgramResult late = diff(folder / "late", folder / "early");
  EXPECT_THAT(late.out, HasSubstr("up to step 3, and others at step 4\n"));
  const ProgramResult other = diff(folder / "good", folder / "late");
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_THAT(other.out,
              AllOf(HasSubstr("up to step 9, and others at step 10\n"),
                    HasSubstr("no checkpoint of step 10 is in both: --checkpoint-every 10 --keep 0 would")));
}

TEST(Diff, says_what_it_cannot_compare) {
  const TestFolder folder;
  EXPECT_THAT(diff(folder / "none", folder.path()).err, HasSubstr("none: there is no such folder"));
  const ProgramResult empty = diff(folder.path(), folder.path());
  EXPECT_EQ(empty.exit_code, exit_code(ErrorKind::InvalidArgument));
  EXPECT_THAT(empty.err, HasSubstr("train with --hash-every"));
  for (const auto& [name, step] : {std::pair("a", 1), std::pair("b", 2)})
    store::WeightHashes(folder / name, 0).add(step, std::string(64, 'a'));
  EXPECT_THAT(diff(folder / "a", folder / "b").err, HasSubstr("have no step in common"));
}

}  // namespace
}  // namespace tutti::testing::same_weights_test

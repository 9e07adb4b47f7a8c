// What workers can do otherwise together: sharded state, sums in any order, fewer bits on the wire, uneven
// data.
#include <algorithm>
#include <regex>

#include <gmock/gmock.h>

#include "tests/together.h"

namespace tutti::testing {
namespace {

using ::testing::HasSubstr;

const Flags kNormed = {"--net", "normed", "--clip-norm", "0.5", "--lanes", "4", "--batch", "3"};

// Which of them is taken where nothing is said is not what is tested here.
const Flags kSharded = {"--optimizer-state", "sharded"};
const Flags kReplicated = {"--optimizer-state", "replicated"};

TEST(TogetherOptions, sharded_state_gives_the_same_bits) {
  const TestFolder folder;
  const Flags flags = with(kNormed, {"--steps", "20"});
  const std::string expected = hash_of(training(1, flags), folder);
  for (const int workers : {1, 2, 3}) {
    for (const char* comm : {"auto", "gloo"}) {
      for (const Flags& state : {kSharded, kReplicated})
        EXPECT_EQ(hash_of(training(workers, with(with(flags, state), {"--comm", comm})), folder), expected)
            << workers << " workers, " << comm << ", " << state.back();
    }
  }
}

// What each of the workers has for itself beside what they share, in megabytes.
double most_private_memory(int workers, const Flags& flags) {
  const ProgramResult result = run_program(training(workers, flags));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  double most = 0;
  static const std::regex kLine("private memory ([0-9]+)");
  for (std::sregex_iterator it(result.out.begin(), result.out.end(), kLine); it != std::sregex_iterator();
       ++it)
    most = std::max(most, std::stod((*it)[1]) / 1024);
  return most;
}

TEST(TogetherOptions, sharded_state_takes_the_memory_of_a_part) {
  constexpr double kState = 2.0 * 4 * (784 * 20000 + 20000 + 20000 * 10 + 10) / (1 << 20);  // of Adam
  const Flags flags = {"--net", "wide", "--lanes", "4", "--batch", "1", "--steps", "3", "--say-memory"};
  for (const int workers : {2, 4}) {
    const double whole = most_private_memory(workers, with(flags, kReplicated));
    const double part = most_private_memory(workers, with(flags, kSharded));
    EXPECT_GT(whole, kState) << workers;
    EXPECT_NEAR(whole - part, kState * (workers - 1) / workers, 0.1 * kState) << workers;
  }
}

TEST(TogetherOptions, checkpoints_do_not_show_how_the_state_was_kept) {
  const TestFolder folder;
  const std::string expected = hash_of(training(1, with(kNormed, {"--steps", "24"})), folder);
  for (const char* every : {"5", "0.001s"}) {
    const Flags saving = with(kNormed, {"--logdir", folder / every, "--checkpoint-every", every});
    hash_of(training(3, with(with(saving, {"--steps", "8"}), kSharded)), folder);
    hash_of(training(2, with(with(saving, {"--steps", "16"}), kReplicated)), folder);
    EXPECT_EQ(hash_of(training(2, with(with(saving, {"--steps", "24"}), kSharded)), folder), expected)
        << every;
  }
}

TEST(TogetherOptions, the_report_says_how_gradients_were_added) {
  const TestFolder folder;
  const Flags flags = with(kNormed, {"--steps", "10"});
  const auto tree = report_of(training(2, flags), folder);
  EXPECT_EQ(tree.at("reduce"), "tree");
  for (const char* comm : {"shm", "gloo"}) {
    const auto fast = report_of(training(3, with(flags, {"--reduce", "fast", "--comm", comm})), folder);
    EXPECT_EQ(fast.at("reduce"), "fast");
    EXPECT_NEAR(fast.at("loss").get<double>(), tree.at("loss").get<double>(), 1e-2);
  }
  const auto rounded =
      report_of(training(2, with(flags, {"--wire-precision", "bf16", "--comm", "gloo"})), folder);
  EXPECT_EQ(rounded.at("reduce"), "tree, bfloat16 on the wire");
  EXPECT_NEAR(rounded.at("loss").get<double>(), tree.at("loss").get<double>(), 1e-1);
}

TEST(TogetherOptions, nccl_without_a_gpu_each_is_an_error_and_one_worker_needs_nothing) {
  const TestFolder folder;
  const Flags flags = with(kNormed, {"--steps", "3", "--device", "cpu", "--comm", "nccl"});
  const auto result = run_program(training(2, flags));
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("--comm nccl, but worker/0 on "));
  EXPECT_THAT(result.err, HasSubstr(" has no GPU: use auto"));
  EXPECT_EQ(report_of(training(1, flags), folder).at("steps"), 3);
}

// 60,000 drawn digits: with steps of 4 x 7000 the third would have 4,000, of which the last three lanes get
// none.
TEST(TogetherOptions, what_does_not_fill_a_step_is_left_out_or_taken_by_whoever_gets_it) {
  const TestFolder folder;
  const Flags flags = {"--net", "odd", "--lanes", "4", "--batch", "7000", "--epochs", "1"};
  const auto dropped = report_of(training(2, flags), folder);
  EXPECT_EQ(dropped.at("steps"), 2);
  EXPECT_EQ(dropped.at("examples"), 56000);
  const auto all = report_of(training(3, with(flags, {"--no-drop-remainder"})), folder);
  EXPECT_EQ(all.at("steps"), 3);
  EXPECT_EQ(all.at("examples"), 60000);
  EXPECT_EQ(all.at("weights_sha256"), hash_of(training(1, with(flags, {"--no-drop-remainder"})), folder));
  const auto result = run_program(training(2, {"--net", "odd", "--batch", "40000"}));
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("do not fill one step of 2 lanes with 40000 each"));
}

}  // namespace
}  // namespace tutti::testing

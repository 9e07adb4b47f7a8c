// The second example, a loop of one's own, as its users start it.
#include <filesystem>

#include <gtest/gtest.h>

#include "tests/together.h"

namespace tutti::testing {
namespace {

Flags alone_with(const Flags& flags) {
  return with({program_path("own_loop"), "--threads", "1", "--lanes", "6", "--batch", "4"}, flags);
}

// What it prints last.
std::string weights_after(const Flags& command) {
  const ProgramResult result = run_program(command);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const size_t at = result.out.find("weights ");
  EXPECT_NE(at, std::string::npos) << result.out;
  return at == std::string::npos ? "there are none" : result.out.substr(at, result.out.find('\n', at) - at);
}

Flags workers(int count) { return {program_path("tutti"), "run", "-n", std::to_string(count), "--"}; }

TEST(OwnLoop, ends_with_the_same_bits_on_any_number_of_workers) {
  const Flags flags = alone_with({"--steps", "30"});
  const std::string alone = weights_after(flags);
  for (const int count : {2, 3}) EXPECT_EQ(weights_after(with(workers(count), flags)), alone) << count;
}

TEST(OwnLoop, goes_on_where_another_number_of_workers_has_stopped) {
  const TestFolder folder;
  const std::string straight = weights_after(alone_with({"--steps", "30"}));
  const Flags saving = alone_with({"--logdir", folder / "run", "--checkpoint-every", "5"});
  weights_after(with(workers(2), with(saving, {"--steps", "12"})));
  EXPECT_TRUE(std::filesystem::exists(folder / "run/ckpt-12"));
  EXPECT_EQ(weights_after(with(workers(3), with(saving, {"--steps", "20"}))).substr(0, 8), "weights ");
  EXPECT_EQ(weights_after(with(saving, {"--steps", "30"})), straight);
}

TEST(OwnLoop, has_hooks_that_count_what_all_workers_see) {
  const TestFolder folder;
  const Flags flags = alone_with({"--steps", "30", "--logdir", folder / "run", "--summary-every", "10"});
  const auto accuracy = [](const ProgramResult& result) {
    const size_t at = result.err.find("accuracy (batch)");
    EXPECT_NE(at, std::string::npos) << result.err;
    return result.err.substr(at, result.err.find('\n', at) - at);
  };
  const std::string alone = accuracy(run_program(flags));
  EXPECT_EQ(accuracy(run_program(with(workers(2), with(flags, {"--resume", "never"})))), alone);
}

TEST(OwnLoop, is_started_by_mpirun_too) {
  if (run_program({"sh", "-c", "command -v mpirun"}).exit_code != 0)
    GTEST_SKIP() << "NOTHING IS TESTED HERE: there is no mpirun (apt-get install openmpi-bin)";
  const Flags flags = alone_with({"--steps", "30"});
  const Flags mpirun = {"mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "2"};
  EXPECT_EQ(weights_after(with(mpirun, flags)), weights_after(flags));
}

}  // namespace
}  // namespace tutti::testing

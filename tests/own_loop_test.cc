// Tests the second example, a user's own loop, as users start it.
#include <csignal>
#include <filesystem>
#include <signal.h>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/together.h"
#include "tutti/base/error.h"

namespace tutti::testing::own_loop_test {
namespace {

Flags alone_with(const Flags& flags) {
  return with({program_path("own_loop"), "--threads", "1", "--lanes", "6", "--batch", "4"}, flags);
}

// Returns the last line that the program prints.
std::string weights_in(const ProgramResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const size_t at = result.out.find("weights ");
  EXPECT_NE(at, std::string::npos) << result.out;
  return at == std::string::npos ? "there are none" : result.out.substr(at, result.out.find('\n', at) - at);
}

std::string weights_after(const Flags& command) { return weights_in(run_program(command)); }

Flags workers(int count) { return {program_path("tutti"), "run", "-n", std::to_string(count), "--"}; }

TEST(OwnLoop, refuses_a_strategy_that_only_a_trainer_has_and_servers_that_are_not_there) {
  const auto expect_refused = [](const char* strategy, const char* why) {
    const ProgramResult result = run_program(alone_with({"--steps", "1", "--strategy", strategy}));
    EXPECT_EQ(result.exit_code, exit_code(ErrorKind::InvalidArgument)) << result.err;
    EXPECT_THAT(result.err, ::testing::HasSubstr(why)) << strategy;
  };
  expect_refused("in-graph", "Use a Trainer");
  expect_refused("ps-sync", "--strategy ps-sync needs parameter servers");
  expect_refused("ps-async", "--strategy ps-async needs parameter servers");
}

TEST(OwnLoop, refuses_audits_if_it_does_not_know_them_or_has_several_nets) {
  const ProgramResult unaware = run_program(alone_with({"--steps", "1", "--audit", "2"}));
  EXPECT_EQ(unaware.exit_code, exit_code(ErrorKind::InvalidArgument)) << unaware.err;
  EXPECT_THAT(unaware.err, ::testing::HasSubstr("Let its loop use lanes_of_step()"));
  const ProgramResult nets = run_program({program_path("two_nets"), "--steps", "1", "--audit", "2"});
  EXPECT_EQ(nets.exit_code, exit_code(ErrorKind::InvalidArgument)) << nets.err;
  EXPECT_THAT(nets.err, ::testing::HasSubstr("a loop of several nets cannot make a step again"));
}

TEST(OwnLoop, refuses_to_train_alone_with_several_workers) {
  const ProgramResult result =
      run_program(with(workers(2), alone_with({"--steps", "1", "--strategy", "single"})));
  EXPECT_EQ(result.exit_code, exit_code(ErrorKind::InvalidArgument)) << result.err;
  EXPECT_THAT(result.err, ::testing::HasSubstr("--strategy single is for one process"));
}

// --epochs sets --steps to 0, which is not all that is told.
TEST(OwnLoop, tells_all_flags_that_differ) {
  const std::string loop = program_path("own_loop");
  const ProgramResult result = run_program(
      with(workers(2), {"sh", "-c",
                        "[ $TUTTI_TASK_INDEX = 0 ] && exec " + loop + " --threads 1 --steps 10; exec " +
                            loop + " --threads 1 --epochs 1"}));
  EXPECT_EQ(result.exit_code, exit_code(ErrorKind::InvalidArgument)) << result.err;
  EXPECT_THAT(result.err, ::testing::ContainsRegex("has '--steps 10' and '--epochs 0', worker/1 .*has "
                                                   "'--steps 0' and '--epochs 1'"));
}

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

// This adds dropout and batch norm, which the example does not have.
TEST(OwnLoop, keeps_the_bits_of_dropout_and_is_the_same_as_a_trainer) {
  const TestFolder folder;
  const Flags flags = {"--net", "normed",  "--layout", "contiguous", "--lanes",
                       "4",     "--batch", "3",        "--steps",    "20"};
  const std::string trainer = hash_of(on_workers(1, flags), folder);
  for (const int count : {1, 2, 4})
    EXPECT_EQ(hash_of(on_workers(count, with(flags, {"--own-loop"})), folder), trainer) << count;
}

TEST(OwnLoop, keeps_the_bits_of_dropout_after_a_kill) {
  const TestFolder folder;
  const Flags flags = {"--net", "normed", "--lanes", "4", "--batch", "20", "--steps", "100", "--own-loop"};
  const std::string straight = hash_of(on_workers(1, flags), folder);
  const Flags kept = with(flags, {"--logdir", folder / "log", "--checkpoint-every", "10"});
  RunningProgram first(training(1, kept));
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(folder / "log/ckpt-10"); }));
  ::kill(first.pid(), SIGKILL);
  first.wait();
  EXPECT_EQ(hash_of(on_workers(4, kept), folder), straight);
}

// The end of a training with a validation, early stopping and a moving average.
struct Validated {
  int64_t steps = 0;
  std::string hash;
  std::string history;
  bool operator==(const Validated&) const = default;
};

const Flags kValidated = {
    "--net",   "normed", "--layout",  "contiguous", "--lanes",          "4", "--batch", "5",
    "--steps", "200",    "--average", "0.9",        "--validate-every", "5"};

Validated validated(int workers, const Flags& flags) {
  const TestFolder folder;
  const std::string report = folder / "report.json";
  const ProgramResult result = run_job(on_workers(workers, with(flags, {"--report", report})));
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  if (result.exit_code != 0) return {};
  std::string history;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("step ")) history += line + "\n";
  }
  const nlohmann::json json = json_of(report);
  return {json.at("steps").get<int64_t>(), json.at("weights_sha256").get<std::string>(), history};
}

TEST(OwnLoop, validates_a_moving_average_and_ends_early_as_a_trainer_does) {
  const Validated trainer = validated(1, kValidated);
  EXPECT_LT(trainer.steps, 200);
  EXPECT_THAT(trainer.history, ::testing::HasSubstr("accuracy"));
  const Flags flags = with(kValidated, {"--own-loop"});
  for (const int count : {1, 2, 3}) {
    const Validated loop = validated(count, flags);
    EXPECT_EQ(loop.steps, trainer.steps) << count;
    EXPECT_EQ(loop.hash, trainer.hash) << count;
    EXPECT_EQ(loop.history, trainer.history) << count;
  }
  // The validations change nothing else.
  const std::string steps = std::to_string(trainer.steps);
  const Flags plain = {"--net",   "normed", "--layout", "contiguous", "--lanes",   "4",
                       "--batch", "5",      "--steps",  steps,        "--own-loop"};
  EXPECT_EQ(hash_of(on_workers(1, plain), TestFolder()), trainer.hash);
}

TEST(OwnLoop, continues_its_validations_and_its_average_after_a_kill) {
  const TestFolder folder;
  const Flags flags = with(kValidated, {"--own-loop"});
  const Validated alone = validated(1, flags);
  const Flags kept = with(flags, {"--logdir", folder / "log", "--checkpoint-every", "4"});
  EXPECT_NE(run_program(training(2, with(kept, {"--kill-at", "9", "--timeout", "5"}))).exit_code, 0);
  EXPECT_TRUE(std::filesystem::exists(folder / "log/latest/average.safetensors"));
  EXPECT_EQ(validated(2, kept), alone);
}

TEST(OwnLoop, ends_at_the_same_step_on_any_number_of_workers_and_stays_ended) {
  const TestFolder folder;
  const Flags flags = {"--own-loop", "--lanes", "4", "--batch", "3", "--steps", "100", "--stop-at", "7"};
  const nlohmann::json alone = report_of(on_workers(1, flags), folder);
  EXPECT_EQ(alone.at("steps"), 8);
  const Flags kept = with(flags, {"--logdir", folder / "log"});
  for (const int count : {2, 4, 1}) {
    const nlohmann::json report = report_of(on_workers(count, kept), folder);
    EXPECT_EQ(report.at("steps"), 8) << count;
    EXPECT_EQ(report.at("weights_sha256"), alone.at("weights_sha256")) << count;
  }
}

TEST(OwnLoop, is_said_to_have_stopped_by_the_chief_alone) {
  const ProgramResult result =
      run_program(training(3, {"--own-loop", "--batch", "3", "--steps", "100", "--stop-at", "7"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string said = "stopped after step 8: it has seen enough";
  const size_t at = result.err.find(said);
  ASSERT_NE(at, std::string::npos) << result.err;
  EXPECT_EQ(result.err.find(said, at + 1), std::string::npos) << result.err;
  EXPECT_THAT(result.err.substr(result.err.rfind('\n', at) + 1), ::testing::StartsWith("[worker/0]"));
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

// The command of the sixth example: a generator and a discriminator.
Flags two_nets(const Flags& flags) {
  return with({program_path("two_nets"), "--threads", "1", "--lanes", "4", "--batch", "8"}, flags);
}

TEST(TwoNets, end_with_the_same_bits_on_any_number_of_workers_and_after_a_kill) {
  const TestFolder folder;
  const Flags flags = two_nets({"--steps", "60"});
  const std::string alone = weights_after(flags);
  EXPECT_EQ(weights_after(with(workers(2), flags)), alone);
  const Flags saving = two_nets({"--logdir", folder / "run", "--checkpoint-every", "5"});
  {
    RunningProgram endless(with(workers(2), with(saving, {"--steps", "1000000"})));
    EXPECT_TRUE(eventually([&] { return std::filesystem::exists(folder / "run/ckpt-10"); }));
    ::kill(endless.pid(), SIGTERM);
    EXPECT_EQ(endless.wait(), 128 + SIGTERM) << endless.err();
  }
  // The step at which it was stopped is unknown. It makes 20 more steps, and must give the bits of a run that
  // was never stopped.
  const std::string latest = std::filesystem::read_symlink(folder / "run/latest").string();
  const std::string steps = std::to_string(std::stoll(latest.substr(latest.find('-') + 1)) + 20);
  EXPECT_EQ(weights_after(with(saving, {"--steps", steps})), weights_after(two_nets({"--steps", steps})));
}

// The command of the example that has everything.
Flags whole_loop(const Flags& flags) {
  return with({program_path("whole_loop"), "--threads", "1", "--lanes", "2", "--batch", "25"}, flags);
}

TEST(WholeLoop, learns_with_the_same_bits_on_any_number_of_workers_and_after_a_stop) {
  const TestFolder folder;
  const ProgramResult alone = run_program(whole_loop({"--steps", "260"}));
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_THAT(alone.err,
              ::testing::HasSubstr("validation of the moving average after step 250:  accuracy 0.9"));
  EXPECT_THAT(alone.out, ::testing::HasSubstr("test accuracy 0.9"));
  EXPECT_THAT(alone.err, ::testing::Not(::testing::HasSubstr("scheduled")));
  const std::string weights = weights_in(alone);
  EXPECT_EQ(weights_after(with(workers(2), whole_loop({"--steps", "260"}))), weights);
  const Flags saving = whole_loop({"--steps", "260", "--logdir", folder / "run"});
  weights_after(with(workers(2), with(saving, {"--stop-after", "120"})));
  EXPECT_EQ(weights_after(saving), weights);
}

TEST(WholeLoop, does_as_its_flags_say) {
  const TestFolder folder;
  // With Tutti's kernels, the layout does not change the bits.
  const Flags flags = whole_loop({"--steps", "10", "--kernels", "libtorch"});
  const auto report = [&](const Flags& more) { return report_of(with(flags, more), folder); };
  const nlohmann::json plain = report({});
  for (const Flags& more : {Flags{"--precision", "bf16"}, Flags{"--layout", "contiguous"},
                            Flags{"--learning-rate", "1e-3"}, Flags{"--seed", "2"}})
    EXPECT_NE(report(more).at("weights_sha256"), plain.at("weights_sha256")) << more.front();
  EXPECT_EQ(report({"--precision", "bf16"}).at("precision"), "bf16");
  EXPECT_EQ(report({"--layout", "channels-last"}).at("weights_sha256"), plain.at("weights_sha256"));
}

}  // namespace
}  // namespace tutti::testing::own_loop_test

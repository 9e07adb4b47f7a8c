// Tests jobs whose tasks compute with different kernels, as on processors of different kinds. A variable of
// one task stands for its processor.
#include <gmock/gmock.h>

#include "tests/served.h"
#include "tests/together.h"
#include "tutti/base/environment.h"
#include "tutti/base/error.h"
#include "tutti/kernels/instructions.h"

namespace tutti::testing::mixed_machines_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const Flags kShort = {"--net", "odd", "--lanes", "2", "--batch", "3", "--steps", "5", "--threads", "1"};
const Flags kSync = {"--strategy", "ps-sync"};
const Flags kInGraph = {"--strategy", "in-graph"};
const Flags kOfLibtorch = {"--kernels", "libtorch"};
const std::string kVariable = "ONEDNN_MAX_CPU_ISA=SSE41";

// Runs a job with LibTorch's kernels in which one task, such as "worker 1", has a variable that the others do
// not have.
ProgramResult mixed(const Flags& launcher, const std::string& task, const std::string& variable,
                    const Flags& flags) {
  const std::string script = fmt::format(
      "if [ \"$TUTTI_JOB_NAME $TUTTI_TASK_INDEX\" = '{}' ]; then exec env '{}' \"$@\"; else exec \"$@\"; fi",
      task, variable);
  const Flags command = with({program_path("tutti"), "run"}, launcher);
  const Flags all_flags = with(with(kShort, kOfLibtorch), flags);
  return run_program(with(with(command, {"--", "sh", "-c", script, "sh", together_program()}), all_flags));
}

void expect_refused(const ProgramResult& result, const std::string& first, const std::string& other,
                    const std::string& variable = kVariable) {
  EXPECT_EQ(result.exit_code, exit_code(ErrorKind::InvalidArgument)) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("compute with different kernels"), HasSubstr(variable),
                                HasSubstr(first), HasSubstr(other), HasSubstr("--mixed-machines")));
}

int64_t warnings_in(const ProgramResult& result) {
  int64_t count = 0;
  std::istringstream lines(result.err);
  // The launcher may repeat a line at its end, without the time that a log line has.
  for (std::string line; std::getline(lines, line);)
    count += line.find("the bits of the result depend on this mix") != std::string::npos ? 1 : 0;
  return count;
}

TEST(MixedMachines, workers_of_an_all_reduce_refuse_each_other) {
  for (const std::string comm : {"shm", "tcp"}) {
    for (const std::string& variable : {kVariable, std::string("MKL_CBWR=COMPATIBLE")})
      expect_refused(mixed({"-n", "2"}, "worker 1", variable, {"--comm", comm}), "worker/0", "worker/1",
                     variable);
    expect_refused(mixed({"-n", "3"}, "worker 0", kVariable, {"--comm", comm}), "worker/0", "worker/1");
  }
  expect_refused(mixed({"-n", "2"}, "worker 1", kVariable, {"--own-loop"}), "worker/0", "worker/1");
}

TEST(MixedMachines, other_kernels_of_libtorch_itself_are_named) {
  const ProgramResult result = mixed({"-n", "2"}, "worker 1", "ATEN_CPU_CAPABILITY=default", {});
  if (result.exit_code == 0 && result.err.find("different kernels") == std::string::npos)
    GTEST_SKIP() << "NOT TESTED: LibTorch has only one kind of kernels on this processor";
  expect_refused(result, "worker/0", "worker/1", "with DEFAULT'");
}

TEST(MixedMachines, servers_and_workers_of_synchronous_steps_refuse_each_other) {
  const Flags launcher = {"--ps", "2", "-n", "2"};
  expect_refused(mixed(launcher, "worker 1", kVariable, kSync), "worker/0", "worker/1");
  expect_refused(mixed(launcher, "ps 0", kVariable, kSync), "worker/0", "ps/0");
  expect_refused(mixed(launcher, "ps 1", kVariable, kSync), "worker/0", "ps/1");
}

TEST(MixedMachines, a_master_and_its_workers_refuse_each_other) {
  expect_refused(mixed({"-n", "2"}, "worker 1", kVariable, kInGraph), "worker/0", "worker/1");
  expect_refused(mixed({"-n", "2"}, "master 0", kVariable, kInGraph), "master/0", "worker/0");
}

// Returns the variables with which a program computes as on a processor that has no better instructions.
std::string limits_of(const std::string& instructions) {
  std::string variables = "TUTTI_TEST_INSTRUCTIONS=" + instructions + " ATEN_CPU_CAPABILITY=";
  variables += instructions.starts_with("avx") ? instructions : "default";
  // The C library's functions do without fused instructions as well.
  if (instructions == "portable") variables += " GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4";
  return variables;
}

// Returns commands that start the program as on several processors. TUTTI_TEST_ARM may be the command that
// runs it on a 64-bit ARM, which is then one of the first four.
std::vector<std::string> processors() {
  const auto arm = Environment::of_process().get("TUTTI_TEST_ARM");
  std::vector<std::string> all;
  for (const std::string& instructions : kernels::available_instructions()) {
    const bool is_replaced = instructions == "sse4" && arm;
    all.push_back(is_replaced ? *arm : fmt::format("{} '{}'", limits_of(instructions), together_program()));
  }
  return all;
}

// Runs a job of four workers, each on another processor.
ProgramResult on_all_processors(const Flags& flags) {
  const std::vector<std::string> all = processors();
  std::string script = "case $TUTTI_TASK_INDEX in ";
  for (size_t worker = 0; worker < 4; ++worker)
    script += fmt::format("{}) exec env {} \"$@\";; ", worker, all[worker % all.size()]);
  return run_program(
      with({program_path("tutti"), "run", "-n", "4", "--", "sh", "-c", script + "esac", "sh"}, flags));
}

TEST(MixedMachines, give_the_hash_of_one_worker_with_kernels_that_are_the_same_on_all) {
  if (processors().size() < 2)
    GTEST_SKIP() << "NOT TESTED: Tutti has only one kind of instructions for this processor";
  const TestFolder folder;
  const std::vector<std::pair<std::string, std::string>> networks_and_transports = {{"gpt", "shm"},
                                                                                    {"normed", "tcp"}};
  for (const auto& [net, comm] : networks_and_transports) {
    const Flags flags = {"--net", net, "--lanes", "4", "--batch", "2", "--steps", "4", "--timeout", "300"};
    const std::string report = folder / net;
    const ProgramResult together =
        on_all_processors(with(flags, {"--threads", "1", "--comm", comm, "--report", report}));
    ASSERT_EQ(together.exit_code, 0) << together.err;
    EXPECT_EQ(json_of(report).at("weights_sha256"), hash_of(on_workers(1, flags), folder)) << net;
  }
  const ProgramResult result =
      on_all_processors(with(with(kShort, kOfLibtorch), {"--lanes", "4", "--timeout", "300"}));
  EXPECT_EQ(result.exit_code, exit_code(ErrorKind::InvalidArgument)) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("compute with different kernels"), HasSubstr("worker/0"),
                                HasSubstr("--mixed-machines")));
}

TEST(MixedMachines, without_fused_instructions_say_once_that_they_are_slow) {
  const auto said = [](const std::string& instructions) {
    const ProgramResult result =
        run_program(with({together_program()}, kShort), {"TUTTI_TEST_INSTRUCTIONS=" + instructions});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const std::string text = "the same bits without it, but slowly";
    const size_t first = result.err.find(text);
    if (first == std::string::npos) return false;
    EXPECT_EQ(result.err.find(text, first + 1), std::string::npos) << result.err;
    return true;
  };
  for (const std::string& instructions : kernels::available_instructions())
    EXPECT_EQ(said(instructions), instructions == "sse4" || instructions == "portable") << instructions;
}

TEST(MixedMachines, are_allowed_by_a_flag_with_one_warning) {
  const std::vector<std::tuple<Flags, std::string, Flags>> jobs = {
      {{"-n", "3"}, "worker 1", {"--comm", "shm"}},  {{"-n", "2"}, "worker 1", {"--comm", "tcp"}},
      {{"--ps", "2", "-n", "2"}, "worker 1", kSync}, {{"--ps", "2", "-n", "2"}, "ps 1", kSync},
      {{"-n", "2"}, "worker 1", kInGraph},           {{"-n", "2"}, "master 0", kInGraph},
  };
  for (const auto& [launcher, task, flags] : jobs) {
    const ProgramResult result = mixed(launcher, task, kVariable, with(flags, {"--mixed-machines"}));
    EXPECT_EQ(result.exit_code, 0) << task << "\n" << result.err;
    EXPECT_EQ(warnings_in(result), 1) << task << "\n" << result.err;
  }
}

// Its bits depend on which worker is faster.
TEST(MixedMachines, may_train_asynchronously) {
  const ProgramResult result =
      mixed({"--ps", "1", "-n", "2"}, "worker 1", kVariable, {"--strategy", "ps-async"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, Not(HasSubstr("different kernels")));
}

TEST(MixedMachines, are_a_warning_for_a_run_that_goes_on) {
  const TestFolder folder;
  const Flags flags = with(with(kShort, kOfLibtorch), {"--logdir", folder / "run"});
  const Flags command = with({"env", kVariable, together_program()}, flags);
  EXPECT_EQ(run_program(command).exit_code, 0);
  const ProgramResult other = run_program(with({together_program()}, with(flags, {"--stop-after", "5"})));
  EXPECT_EQ(other.exit_code, 0) << other.err;
  EXPECT_THAT(other.err, AllOf(HasSubstr("was made with libraries LibTorch"), HasSubstr(kVariable),
                               HasSubstr("the bits may differ")));
  const ProgramResult same = run_program(command);
  EXPECT_EQ(same.exit_code, 0) << same.err;
  EXPECT_THAT(same.err, Not(HasSubstr("was made with")));
}

}  // namespace
}  // namespace tutti::testing::mixed_machines_test

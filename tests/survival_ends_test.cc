// Tests how a job with `tutti run --min` ends when too many workers are lost, or one without which the others
// cannot go on.
#include <csignal>
#include <filesystem>
#include <map>
#include <memory>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/together.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/ports.h"

namespace tutti::testing::survival_ends_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// With dropout and batch norm.
const Flags kRun = {"--net", "normed", "--lanes", "8", "--batch", "2", "--steps", "12"};

// Takes the flags of `tutti run`, and then the flags of the program.
Flags job(int workers, const Flags& launch, const Flags& flags) {
  const Flags command = {program_path("tutti"), "run", "-n", std::to_string(workers)};
  return command + launch + Flags{"--", together_program(), "--threads", "1"} + flags;
}

// In the last epoch there may be one worker or several, and another chief. No worker makes a step in it.
TEST(SurvivalOfTooFew, saves_a_checkpoint_of_the_last_step) {
  struct Loss {
    int workers;
    std::string misfortune;
    int64_t step;
    std::string why;
  };
  const TestFolder folder;
  const std::string undisturbed = hash_of(on_workers(1, kRun), folder);
  for (const Flags& way : {Flags{"--comm", "shm"}, Flags{"--comm", "tcp"}, Flags{"--own-loop"}}) {
    for (const Loss& loss :
         {Loss{3, "1@5/before,2@6/before", 6, "1 of 3 workers is left, fewer than --min 2"},
          Loss{4, "1@5/before,0@7/before", 7, "2 of 4 workers are left, fewer than --min 3"}}) {
      const std::string logdir = folder / (way.back() + loss.misfortune.substr(0, 1) + loss.why.substr(0, 1));
      const Flags flags = kRun + way + Flags{"--logdir", logdir};
      const Flags min = {"--min", std::to_string(loss.workers - 1)};
      const ProgramResult result = run_program(
          job(loss.workers, min, flags + Flags{"--misfortune", loss.misfortune}), {}, Crashes::AskedFor);
      EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.err;
      EXPECT_THAT(result.err,
                  AllOf(HasSubstr("the job ends: " + loss.why),
                        HasSubstr(fmt::format("stopped by SIGTERM after step {} of 12: checkpoint saved",
                                              loss.step))));
      EXPECT_TRUE(std::filesystem::exists(fmt::format("{}/ckpt-{}", logdir, loss.step)));
      const nlohmann::json report = report_of(on_workers(2, flags), folder);
      EXPECT_EQ(report.at("weights_sha256"), undisturbed);
      EXPECT_EQ(report.at("restarts"), 1);
      EXPECT_EQ(report.at("lost_steps"), 0);
    }
  }
}

// The launcher reads them from a pipe.
TEST(PrintedLines, are_there_if_the_program_is_killed_later) {
  const Flags flags = kRun + Flags{"--tell-every", "2", "--misfortune", "0@9/before"};
  const ProgramResult result = run_program(job(2, {}, flags), {}, Crashes::AskedFor);
  EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.err;
  EXPECT_THAT(result.out, HasSubstr("told by rank 0"));
}

// As a virtual machine is while it is moved. Its worker is the chief and has locked the log directory.
TEST(SurvivalOfAFrozenHost, goes_on_with_the_lock_that_is_taken_away) {
  const TestFolder folder;
  const std::string logdir = folder / "logs";
  const std::string report = folder / "report.json";
  const std::string address = fmt::format("127.0.0.1:{}", free_ports(1).front());
  const Flags run = {"--net", "normed", "--lanes", "3", "--batch", "2", "--steps", "600"};
  const auto mark = [&](int node) { return fmt::format("MARK_OF_THIS_TEST={} {}", folder.path(), node); };
  std::map<int, std::unique_ptr<RunningProgram>> nodes;
  for (const int node : {2, 1, 0}) {
    const Flags program = {together_program(),   "--threads", "1",        "--logdir", logdir,
                           "--checkpoint-every", "100",       "--report", report};
    nodes[node] = std::make_unique<RunningProgram>(
        launcher_of_node(node, address, 3) + Flags{"-n", "1", "--min", "1", "--"} + program + run,
        Flags{mark(node), "TUTTI_SECRET=of all", "TUTTI_TIMEOUT=4"});
  }
  ASSERT_TRUE(eventually([&] { return path_exists(logdir + "/ckpt-100"); })) << nodes.at(0)->err();
  const auto signal_host = [frozen = processes_with(mark(0))](int signal) {
    for (const pid_t pid : frozen) kill(pid, signal);
  };
  signal_host(SIGSTOP);
  for (const int node : {1, 2}) EXPECT_EQ(nodes.at(node)->wait(), 0) << nodes.at(node)->err();
  signal_host(SIGCONT);
  EXPECT_EQ(nodes.at(0)->wait(), exit_code(ErrorKind::PeerLost)) << nodes.at(0)->err();
  EXPECT_THAT(nodes.at(1)->err(), HasSubstr("with 2 workers"));
  EXPECT_EQ(json_of(report).value("weights_sha256", "there is none"), hash_of(on_workers(1, run), folder));
  EXPECT_TRUE(path_exists(logdir + "/ckpt-600"));
  for (const int node : {0, 1, 2})
    EXPECT_TRUE(eventually([&] { return processes_with(mark(node)).empty(); }));
}

// The chief notices it at a checkpoint, which is not saved; the workers come together, and it locks the
// folder again.
TEST(SurvivalOfADeletedLock, goes_on_with_a_new_lock) {
  const TestFolder folder;
  const std::string slow = folder.write("slow", "");
  const std::string logdir = folder / "run";
  const std::string report = folder / "report.json";
  const Flags run = {"--net", "normed", "--lanes", "3", "--batch", "2", "--steps", "300"};
  RunningProgram training(
      job(2, {"--min", "1"},
          run + Flags{"--logdir", logdir, "--checkpoint-every", "10", "--dawdle", slow, "--report", report}));
  ASSERT_TRUE(eventually([&] { return path_exists(logdir + "/latest"); })) << training.err();
  std::filesystem::remove(logdir + "/lock");
  training.wait_for_error("/lock was deleted");
  std::filesystem::remove(slow);
  EXPECT_EQ(training.wait(), 0) << training.err();
  EXPECT_TRUE(path_exists(logdir + "/lock"));
  EXPECT_TRUE(path_exists(logdir + "/ckpt-300"));
  EXPECT_EQ(json_of(report).value("weights_sha256", "there is none"), hash_of(on_workers(1, run), folder));
}

const std::string kWhyGroup = "the program trains with a group that was split from all workers";

TEST(SurvivalOfGroups, is_none_and_the_job_says_so) {
  const ProgramResult result = run_program(
      job(3, {"--min", "1"}, kRun + Flags{"--split", "--misfortune", "1@5/before"}), {}, Crashes::AskedFor);
  EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.err;
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("if a worker is lost, the others cannot go on without it: " + kWhyGroup),
                    HasSubstr("the job ends: the others cannot go on without worker/1: " + kWhyGroup),
                    Not(HasSubstr("the other 2"))));
}

TEST(SurvivalOfGroups, refuses_other_numbers_of_workers) {
  const TestFolder folder;
  const std::string slow = folder.write("slow", "");
  const std::string logdir = folder / "run";
  const Flags flags = {"--net", "normed", "--batch", "2", "--steps", "40", "--split"};
  RunningProgram training(
      job(2, {"--min", "1", "--max", "3"}, flags + Flags{"--logdir", logdir, "--dawdle", slow}));
  training.wait_for_error(kWhyGroup);
  EXPECT_TRUE(eventually([&] { return std::filesystem::exists(logdir + "/launcher.json"); }));
  const ProgramResult scaled = run_program({program_path("tutti"), "scale", logdir, "3"});
  EXPECT_EQ(scaled.exit_code, 2) << scaled.err;
  EXPECT_THAT(scaled.err, HasSubstr("the workers of this job stay the same: " + kWhyGroup));
  std::filesystem::remove(slow);
  EXPECT_EQ(training.wait(), 0) << training.out() << training.err();
}

}  // namespace
}  // namespace tutti::testing::survival_ends_test

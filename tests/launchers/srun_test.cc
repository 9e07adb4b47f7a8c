// Tests training under the srun of a real Slurm with one node, this machine.
#include <csignal>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launchers/slurm.h"
#include "tests/launchers/training.h"

namespace tutti::testing::srun_test {
namespace {

using ::testing::HasSubstr;

// All tests share one cluster.
class Srun : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (Slurm::why_not(kNodes).empty()) slurm = std::make_unique<Slurm>(kNodes);
  }
  static void TearDownTestSuite() { slurm.reset(); }
  void SetUp() override {
    if (const std::string reason = Slurm::why_not(kNodes); !reason.empty())
      GTEST_SKIP() << "NOTHING IS TESTED HERE: " << reason;
    ASSERT_TRUE(slurm->comes_up());
  }

  ProgramResult srun(const std::vector<std::string>& launcher_flags,
                     const std::vector<std::string>& flags = {}) const {
    std::vector<std::string> words = {"srun", "-n", "4"};
    words.insert(words.end(), launcher_flags.begin(), launcher_flags.end());
    return run_program(training_.command(words, flags), training_.environment({slurm->environment()}));
  }

  static constexpr Slurm::Nodes kNodes = Slurm::Nodes::ThisMachine;
  const Training training_;
  static inline std::unique_ptr<Slurm> slurm;
};

TEST_F(Srun, four_tasks_end_with_the_bits_of_one) {
  const auto result = srun({});
  training_.expect_the_bits_of_one(result, 4);
  EXPECT_THAT(result.err, HasSubstr("4 workers connected over shm (on one host)"));
}

TEST_F(Srun, tcp_does_the_same) {
  const auto result = srun({}, {"--comm", "tcp"});
  training_.expect_the_bits_of_one(result, 4);
  EXPECT_THAT(result.err, HasSubstr("4 workers connected over tcp"));
}

TEST_F(Srun, so_do_tasks_that_are_told_by_pmi2) { training_.expect_the_bits_of_one(srun({"--mpi=pmi2"}), 4); }

// Each task is the launcher of a node.
TEST_F(Srun, launchers_that_go_on_without_lost_workers_know_each_other) {
  setenv("TUTTI_SECRET", "ours", 1);
  const auto result = srun({program_path("tutti"), "run", "--min", "1", "--"});
  unsetenv("TUTTI_SECRET");
  training_.expect_the_bits_of_one(result, 4);
  EXPECT_THAT(result.err, HasSubstr("node 0 starts 1 worker and waits up to"));
}

TEST_F(Srun, ends_all_when_a_task_is_killed) {
  RunningProgram run(training_.endless_command({"srun", "-n", "4"}),
                     training_.environment({slurm->environment()}));
  ASSERT_TRUE(eventually([&] { return training_.has_come_to(2); }));
  const pid_t victim = training_.process_with("SLURM_PROCID=2");
  ASSERT_GT(victim, 0);
  kill(victim, SIGKILL);
  EXPECT_NE(run.wait(), 0);
  EXPECT_THAT(run.err(), HasSubstr("worker/2"));
  EXPECT_TRUE(eventually([&] { return training_.processes().empty(); }));
}

}  // namespace
}  // namespace tutti::testing::srun_test

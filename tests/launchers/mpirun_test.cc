// Tests training under Open MPI's mpirun.
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launchers/training.h"
#include "tests/together.h"

namespace tutti::testing::mpirun_test {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> mpirun(const std::string& ranks) {
  return {"mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", ranks};
}

class Mpirun : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!is_installed("mpirun"))
      GTEST_SKIP() << "NOTHING IS TESTED HERE: there is no mpirun (apt-get install openmpi-bin)";
  }

  const Training training_;
};

class MpirunOver : public Mpirun, public ::testing::WithParamInterface<std::string> {};
INSTANTIATE_TEST_SUITE_P(Mpirun, MpirunOver, ::testing::Values("shm", "tcp", "mpi"),
                         [](const auto& info) { return info.param; });

TEST_P(MpirunOver, four_ranks_end_with_the_bits_of_one) {
  const auto result =
      run_program(training_.command(mpirun("4"), {"--comm", GetParam()}), training_.environment());
  training_.expect_the_bits_of_one(result, 4);
  EXPECT_THAT(result.err, HasSubstr("4 workers connected over " + GetParam()));
}

// The transports have other tests of their own; here each has one of the networks.
TEST_P(MpirunOver, dropout_and_batch_norm_have_the_bits_of_one) {
  const std::string net = GetParam() == "shm" ? "odd" : GetParam() == "tcp" ? "normed" : "cnn";
  const Flags flags = {"--net", net, "--lanes", "6", "--batch", "3", "--steps", "10"};
  const Flags all = with({together_program(), "--threads", "1", "--comm", GetParam()}, flags);
  EXPECT_EQ(hash_of(with(mpirun("3"), all), training_.folder()),
            hash_of(training(1, flags), training_.folder()))
      << net;
}

TEST_P(MpirunOver, a_rank_that_is_killed_takes_all_with_it) {
  RunningProgram mpi(training_.endless_command(mpirun("4"), {"--comm", GetParam()}), training_.environment());
  ASSERT_TRUE(eventually([&] { return training_.has_come_to(2); }));
  const pid_t victim = training_.process_with("OMPI_COMM_WORLD_RANK=2");
  ASSERT_GT(victim, 0);
  kill(victim, SIGKILL);
  EXPECT_NE(mpi.wait(), 0);
  EXPECT_TRUE(eventually([&] { return training_.processes().empty(); }));
}

// MPI may serve only as the rendezvous: no rank waits inside MPI for one that does not arrive.
TEST_P(MpirunOver, a_rank_that_is_stopped_is_named_and_all_end) {
  RunningProgram mpi(training_.endless_command(mpirun("4"), {"--comm", GetParam(), "--timeout", "3"}),
                     training_.environment());
  ASSERT_TRUE(eventually([&] { return training_.has_come_to(2); }));
  const pid_t victim = training_.process_with("OMPI_COMM_WORLD_RANK=2");
  ASSERT_GT(victim, 0);
  kill(victim, SIGSTOP);
  EXPECT_NE(mpi.wait(), 0);
  EXPECT_THAT(mpi.err(), HasSubstr("nothing from worker/2"));
  EXPECT_TRUE(eventually([&] { return training_.processes().empty(); }));
}

TEST_F(Mpirun, by_itself_chooses_shared_memory_on_one_host) {
  const auto result = run_program(training_.command(mpirun("3")), training_.environment());
  training_.expect_the_bits_of_one(result, 3);
  EXPECT_THAT(result.err, HasSubstr("3 workers connected over shm (on one host)"));
}

}  // namespace
}  // namespace tutti::testing::mpirun_test

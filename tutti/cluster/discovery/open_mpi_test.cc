#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/test_errors.h"
#include "tutti/cluster/discovery/discovery.h"
#include "tutti/cluster/discovery/test_launched.h"

namespace tutti::discovery {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Recorded: Debian 12's Open MPI 4.1.4, mpirun -n 2, the second process (paths and addresses shortened).
const Variables kOpenMpi4 = {{"OMPI_APP_CTX_NUM_PROCS", "2"},
                             {"OMPI_COMMAND", "env"},
                             {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                             {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                             {"OMPI_COMM_WORLD_NODE_RANK", "1"},
                             {"OMPI_COMM_WORLD_RANK", "1"},
                             {"OMPI_COMM_WORLD_SIZE", "2"},
                             {"OMPI_FIRST_RANKS", "0"},
                             {"OMPI_MCA_ess_base_jobid", "1554644993"},
                             {"OMPI_MCA_ess_base_vpid", "1"},
                             {"OMPI_MCA_orte_app_num", "0"},
                             {"OMPI_MCA_orte_ess_node_rank", "1"},
                             {"OMPI_MCA_orte_ess_num_procs", "2"},
                             {"OMPI_MCA_orte_num_nodes", "1"},
                             {"OMPI_NUM_APP_CTX", "1"},
                             {"OMPI_UNIVERSE_SIZE", "2"},
                             {"PMIX_ID", "1554644993.1"},
                             {"PMIX_NAMESPACE", "1554644993"},
                             {"PMIX_RANK", "1"},
                             {"PMIX_VERSION", "4.2.2rc2"}};

// Recorded: Open MPI 5.0.11, the same command.
const Variables kOpenMpi5 = {{"OMPI_ARGV", ""},
                             {"OMPI_COMMAND", "env"},
                             {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                             {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                             {"OMPI_COMM_WORLD_NODE_RANK", "1"},
                             {"OMPI_COMM_WORLD_RANK", "1"},
                             {"OMPI_COMM_WORLD_SIZE", "2"},
                             {"OMPI_MCA_num_procs", "2"},
                             {"OMPI_NUM_APP_CTX", "1"},
                             {"OMPI_UNIVERSE_SIZE", "2"},
                             {"OMPI_WORLD_LOCAL_SIZE", "2"},
                             {"OMPI_WORLD_SIZE", "2"},
                             {"PMIX_NAMESPACE", "prterun-vm-11660@1"},
                             {"PMIX_RANK", "1"},
                             {"PMIX_VERSION", "5.0.11rc1"},
                             {"PRTE_LAUNCHED", "1"}};

template <class Matcher>
void expect_refused(const Matcher& text, const Environment& environment) {
  expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("Open MPI"), text),
               [&] { from_open_mpi(environment); });
}

TEST(FromOpenMpi, reads_both_versions) {
  for (const Variables& variables : {kOpenMpi4, kOpenMpi5}) {
    const auto found = from_open_mpi(Environment(variables));
    ASSERT_TRUE(found);
    expect_standing(*found, 1, 2, 1, 2);
    EXPECT_EQ(found->task, (Task{"worker", 1}));
    EXPECT_EQ(found->source, "Open MPI");
    EXPECT_TRUE(found->cluster.empty());
    EXPECT_EQ(found->board_address, "");
  }
}

TEST(FromOpenMpi, says_nothing_without_its_variables) {
  EXPECT_FALSE(from_open_mpi(Environment()));
  // Settings that users export do not make the process a task.
  EXPECT_FALSE(from_open_mpi(Environment({{"OMPI_MCA_btl", "tcp,self"}, {"OMPI_ALLOW_RUN_AS_ROOT", "1"}})));
}

TEST(FromOpenMpi, incomplete_variables_are_refused) {
  expect_refused(AllOf(HasSubstr("OMPI_COMM_WORLD_RANK='1'"), HasSubstr("OMPI_COMM_WORLD_SIZE is not")),
                 without(kOpenMpi4, {"OMPI_COMM_WORLD_SIZE"}));
  expect_refused(HasSubstr("OMPI_COMM_WORLD_RANK is not"), without(kOpenMpi5, {"OMPI_COMM_WORLD_RANK"}));
  expect_refused(HasSubstr("OMPI_COMM_WORLD_RANK is not"),
                 without(kOpenMpi4, {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}));
  expect_refused(HasSubstr("OMPI_COMM_WORLD_LOCAL_SIZE is not"),
                 without(kOpenMpi4, {"OMPI_COMM_WORLD_LOCAL_SIZE"}));
  expect_refused(HasSubstr("OMPI_COMM_WORLD_LOCAL_RANK is not"),
                 without(kOpenMpi4, {"OMPI_COMM_WORLD_LOCAL_RANK"}));
}

TEST(FromOpenMpi, impossible_values_are_refused) {
  expect_refused(HasSubstr("OMPI_COMM_WORLD_RANK='2' must be less than OMPI_COMM_WORLD_SIZE='2'"),
                 with(kOpenMpi4, {{"OMPI_COMM_WORLD_RANK", "2"}}));
  expect_refused(HasSubstr("OMPI_COMM_WORLD_LOCAL_SIZE='3' is more than"),
                 with(kOpenMpi4, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}}));
  expect_refused(HasSubstr("OMPI_COMM_WORLD_SIZE='two'"), with(kOpenMpi5, {{"OMPI_COMM_WORLD_SIZE", "two"}}));
  expect_refused(HasSubstr("OMPI_COMM_WORLD_RANK='-1'"), with(kOpenMpi5, {{"OMPI_COMM_WORLD_RANK", "-1"}}));
}

}  // namespace
}  // namespace tutti::discovery

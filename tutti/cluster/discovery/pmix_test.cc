#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/test_errors.h"
#include "tutti/cluster/discovery/discovery.h"
#include "tutti/cluster/discovery/test_launched.h"

namespace tutti::discovery {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Recorded: prterun of PRRTE 3 (Open MPI 5.0.11) without Open MPI's own variables.
const Variables kPrterun = {{"PMIX_HOSTNAME", "vm"},
                            {"PMIX_NAMESPACE", "prterun-vm-11660@1"},
                            {"PMIX_RANK", "1"},
                            {"PMIX_SERVER_URI41", "prterun-vm-11660@0.0;tcp4://127.0.0.1:49509"},
                            {"PMIX_VERSION", "5.0.11rc1"},
                            {"PRTE_LAUNCHED", "1"}};

const Variables kPmixUnderSlurm = {{"PMIX_NAMESPACE", "slurm.pmix.7.0"},
                                   {"PMIX_RANK", "2"},
                                   {"SLURM_LOCALID", "0"},
                                   {"SLURM_NODEID", "1"},
                                   {"SLURM_PROCID", "2"},
                                   {"SLURM_STEP_ID", "0"},
                                   {"SLURM_STEP_NODELIST", "n[1-2]"},
                                   {"SLURM_STEP_NUM_TASKS", "3"},
                                   {"SLURM_STEP_TASKS_PER_NODE", "2,1"}};

TEST(FromPmix, takes_the_world_from_slurm_under_srun) {
  const auto found = from_pmix(Environment(kPmixUnderSlurm));
  ASSERT_TRUE(found);
  expect_standing(*found, 2, 3, 0, 1);
  EXPECT_EQ(found->board_address, "n1");
}

TEST(FromPmix, says_that_the_world_is_not_in_the_variables) {
  expect_error(ErrorKind::InvalidArgument,
               AllOf(HasSubstr("PMIX_RANK='1'"), HasSubstr("number of tasks"), HasSubstr("--cluster_spec")),
               [] { from_pmix(Environment(kPrterun)); });
}

TEST(FromPmix, says_nothing_without_a_rank) {
  EXPECT_FALSE(from_pmix(Environment()));
  EXPECT_FALSE(from_pmix(Environment(Variables{{"PMIX_MCA_pcompress_base_silence_warning", "1"}})));
}

TEST(FromPmix, a_rank_that_slurm_does_not_share_is_refused) {
  expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("PMIX_RANK='1'"), HasSubstr("SLURM_PROCID='2'")),
               [] {
                 from_pmix(with(kPmixUnderSlurm, {{"PMIX_RANK", "1"}}));
               });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("PMIX_RANK='x'"), [] {
    from_pmix(with(kPmixUnderSlurm, {{"PMIX_RANK", "x"}}));
  });
}

}  // namespace
}  // namespace tutti::discovery

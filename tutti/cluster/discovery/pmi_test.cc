#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/test_errors.h"
#include "tutti/cluster/discovery/discovery.h"
#include "tutti/cluster/discovery/test_launched.h"

namespace tutti::discovery {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Recorded: MPICH 5.0.2, mpiexec.hydra -n 2, the second process.
const Variables kHydra = {{"HYDI_CONTROL_FD", "7"}, {"MPI_LOCALNRANKS", "2"}, {"MPI_LOCALRANKID", "1"},
                          {"PMI_FD", "11"},         {"PMI_HOSTNAME", "vm"},   {"PMI_RANK", "1"},
                          {"PMI_SIZE", "2"}};

// srun --mpi=pmi2: the rank from PMI, the rest from Slurm.
const Variables kPmiUnderSlurm = {{"PMI_FD", "11"},
                                  {"PMI_JOBID", "7.0"},
                                  {"PMI_RANK", "3"},
                                  {"PMI_SIZE", "4"},
                                  {"SLURM_LOCALID", "1"},
                                  {"SLURM_NODEID", "1"},
                                  {"SLURM_PROCID", "3"},
                                  {"SLURM_STEP_ID", "0"},
                                  {"SLURM_STEP_NODELIST", "n[1-2]"},
                                  {"SLURM_STEP_NUM_TASKS", "4"},
                                  {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}};

template <class Matcher>
void expect_pmi_refused(const Matcher& text, const Environment& environment) {
  expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("PMI"), text), [&] { from_pmi(environment); });
}

TEST(FromPmi, reads_hydra_s_variables) {
  const auto found = from_pmi(Environment(kHydra));
  ASSERT_TRUE(found);
  expect_standing(*found, 1, 2, 1, 2);
  EXPECT_EQ(found->source, "MPICH (PMI)");
}

TEST(FromPmi, reads_cray_s_names_of_the_local_pair) {
  expect_standing(
      *from_pmi(Environment(
          {{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}, {"PMI_LOCAL_RANK", "1"}, {"PMI_LOCAL_SIZE", "4"}})),
      5, 8, 1, 4);
}

TEST(FromPmi, takes_the_local_pair_from_slurm_under_srun) {
  const auto found = from_pmi(Environment(kPmiUnderSlurm));
  expect_standing(*found, 3, 4, 1, 2);
  EXPECT_EQ(found->source, "Slurm");
}

TEST(FromPmi, says_nothing_without_its_variables) {
  EXPECT_FALSE(from_pmi(Environment()));
  EXPECT_FALSE(from_pmi(Environment(Variables{{"PMI_HOSTNAME", "vm"}})));
}

TEST(FromPmi, incomplete_variables_are_refused) {
  expect_pmi_refused(AllOf(HasSubstr("PMI_RANK='1'"), HasSubstr("PMI_SIZE is not")),
                     without(kHydra, {"PMI_SIZE"}));
  expect_pmi_refused(HasSubstr("PMI_RANK is not"), without(kHydra, {"PMI_RANK"}));
  expect_pmi_refused(AllOf(HasSubstr("MPI_LOCALRANKID='1'"), HasSubstr("PMI_RANK is not")),
                     without(kHydra, {"PMI_RANK", "PMI_SIZE"}));
  expect_pmi_refused(HasSubstr("MPI_LOCALNRANKS is not"), without(kHydra, {"MPI_LOCALNRANKS"}));
  expect_pmi_refused(HasSubstr("MPI_LOCALRANKID is not"), without(kHydra, {"MPI_LOCALRANKID"}));
  expect_pmi_refused(HasSubstr("PMI_LOCAL_RANK is not"),
                     without(kHydra, {"MPI_LOCALRANKID", "MPI_LOCALNRANKS"}));
}

TEST(FromPmi, contradictions_are_refused) {
  expect_pmi_refused(AllOf(HasSubstr("PMI_RANK='2'"), HasSubstr("PMI_SIZE='2'")),
                     with(kHydra, {{"PMI_RANK", "2"}}));
  expect_pmi_refused(AllOf(HasSubstr("PMI_RANK='2'"), HasSubstr("SLURM_PROCID='3'"), HasSubstr("contradict")),
                     with(kPmiUnderSlurm, {{"PMI_RANK", "2"}}));
  expect_pmi_refused(
      AllOf(HasSubstr("PMI_SIZE='5'"), HasSubstr("SLURM_STEP_NUM_TASKS='4'"), HasSubstr("contradict")),
      with(kPmiUnderSlurm, {{"PMI_SIZE", "5"}}));
  expect_pmi_refused(HasSubstr("PMI_RANK='x'"), with(kHydra, {{"PMI_RANK", "x"}}));
}

}  // namespace
}  // namespace tutti::discovery

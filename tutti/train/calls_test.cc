#include "tutti/train/calls.h"

#include <array>

#include <gtest/gtest.h>

#include "tutti/comm/test_ranks.h"

namespace tutti {
namespace {

using comm::testing::with_ranks;

// One that has passed the end of the fit is lost before the others know it, and one joins that has seen the
// next fit begin.
TEST(Calls, that_were_made_before_a_fit_are_over_if_one_that_joins_knows_of_the_fit) {
  std::array<Calls, 3> all;
  for (const int rank : {0, 1}) {
    for (const Json& call : {Calls::beginning_of(0), Calls::end_of(0)}) {
      all.at(rank).made(call);
      if (call == Calls::beginning_of(0)) all.at(rank).pass();
    }
  }
  all[2].pass_fit(0);
  with_ranks("inproc", 3, [&](comm::Communicator& comm) {
    all.at(static_cast<size_t>(comm.rank())).agree(comm, comm.rank() == 2);
  });
  for (const int rank : {0, 1}) EXPECT_TRUE(all.at(rank).is_over());
  EXPECT_TRUE(all[2].has_ended(0));
  EXPECT_FALSE(all[2].is_over());
}

// The others made it without knowing that all have.
TEST(Calls, are_made_again_if_nobody_knows_that_all_have_made_them) {
  std::array<Calls, 3> all;
  for (const int rank : {0, 1}) all.at(rank).made(Calls::end_of(0));
  with_ranks("inproc", 3, [&](comm::Communicator& comm) {
    all.at(static_cast<size_t>(comm.rank())).agree(comm, comm.rank() == 2);
  });
  for (const Calls& calls : all) EXPECT_FALSE(calls.is_over());
  EXPECT_FALSE(all[2].has_ended(0));
}

}  // namespace
}  // namespace tutti

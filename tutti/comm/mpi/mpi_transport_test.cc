// Two programs in one. As a test, it starts itself under mpirun with worlds of 1 to 4. Under mpirun, it is
// one of the ranks and runs the tests of a rank.

#include <array>
#include <cstdio>
#include <filesystem>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/environment.h"
#include "tutti/base/test_errors.h"
#include "tutti/comm/collectives.h"
#include "tutti/comm/conformance.h"
#include "tutti/comm/mpi/mpi.h"
#include "tutti/comm/test_messages.h"
#include "tutti/comm/test_network.h"

namespace tutti::comm {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using testing::kLong;
using testing::meet;
using testing::operation;

// --- tests that run as a rank

// Rank 0 serves the table and tells all others its address.
std::shared_ptr<Rendezvous> table_of_ranks() {
  static const auto kTable = [] {
    mpi_initialise();
    const bool serves = Environment::of_process().get("OMPI_COMM_WORLD_RANK") == "0";
    ServedRendezvous served;
    if (serves) served = testing::serve_table();
    const std::string port = mpi_broadcast_text(std::to_string(served.port), 0, kLong);
    if (serves) return served.table;
    return testing::find_table(static_cast<uint16_t>(std::stoi(port)));
  }();
  return kTable;
}

std::unique_ptr<Transport> mpi(const std::string& name) {
  return mpi_transport(with_prefix(table_of_ranks(), name + "/"), {.timeout = kLong});
}

TEST(Rank, exchange_moves_messages_of_any_size) { testing::exchange_messages_of_any_size(*mpi("exchange")); }

TEST(Rank, messages_between_two_keep_their_order_beside_exchanges) {
  testing::send_and_recv_beside_exchanges(*mpi("messages"));
}

TEST(Rank, splits_into_smaller_groups) {
  const auto all = mpi("split");
  std::vector<int> ranks;
  for (int r = all->world() - 1; r >= 0; --r) {
    if (r % 2 == all->rank() % 2) ranks.push_back(r);
  }
  const auto half = all->split(ranks, fmt::format("half/{}", all->rank() % 2));
  ASSERT_EQ(half->world(), static_cast<int>(ranks.size()));
  EXPECT_EQ(ranks[static_cast<size_t>(half->rank())], all->rank());
  meet(*half, operation("exchange"));
  meet(*all, operation("exchange"));
}

TEST(Rank, conforms) {
  Collectives comm(mpi("conforms"), kLong);
  check_conformance(comm);
  if (comm.world() == 2) check_large(comm);
}

// The last rank arrives after the others have given up.
TEST(LateRank, is_named_by_all) {
  const auto transport = mpi("late");
  meet(*transport, operation("barrier"));
  const int last = transport->world() - 1;
  const bool late = transport->rank() == last;
  const auto table = with_prefix(table_of_ranks(), "test/");
  if (late) table->get("over", kLong);
  const auto text = fmt::format("all_reduce failed: nothing from rank {} for 0.3 s", last);
  expect_error(ErrorKind::Timeout, HasSubstr(text), [&] {
    meet(*transport, operation("all_reduce", milliseconds(300)));
    // Small messages of the ranks that have given up may still be received, so the late rank fails in
    // its second operation at the latest.
    meet(*transport, operation("all_reduce", milliseconds(300)));
  });
  fmt::print("{}\n", HasFailure() ? "not named" : "named by all");
  std::fflush(stdout);
  // mpirun ends all ranks when the first one exits, and the table ends with rank 0.
  table->set("over", "");
  table->set(fmt::format("done/{}", transport->rank()), "");
  for (int r = 0; r <= last; ++r) table->get(fmt::format("done/{}", r), kLong);
}

TEST(MisfitRank, refuses_messages_of_another_size) {
  const std::unique_ptr<Communicator> comm = std::make_unique<Collectives>(mpi("misfit"), kLong);
  check_misfits(*comm);
  check_empty_beside_others(*comm);
  fmt::print("refused by {}\n", comm->rank());
  std::fflush(stdout);
  comm->barrier();
}

// --- tests that start ranks

struct Ended {
  int status;
  std::string output;
};

Ended under_mpirun(int world, const std::string& filter) {
  const std::string command = fmt::format(
      "mpirun --allow-run-as-root --oversubscribe --bind-to none -np {} {} --gtest_color=no "
      "--gtest_filter='{}' 2>&1",
      world, std::filesystem::read_symlink("/proc/self/exe").string(), filter);
  Ended ended{};
  FILE* pipe = ::popen(command.c_str(), "r");
  std::array<char, 4096> piece{};
  while (const size_t size = std::fread(piece.data(), 1, piece.size(), pipe))
    ended.output.append(piece.data(), size);
  ended.status = ::pclose(pipe);
  return ended;
}

class Mpirun : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (std::system("command -v mpirun >/dev/null 2>&1") != 0)
      GTEST_SKIP() << "NOTHING IS TESTED HERE: there is no mpirun (apt-get install openmpi-bin)";
  }
};
INSTANTIATE_TEST_SUITE_P(Mpi, Mpirun, ::testing::Values(1, 2, 3, 4));

TEST_P(Mpirun, ranks_agree) {
  const Ended ended = under_mpirun(GetParam(), "Rank.*");
  EXPECT_EQ(ended.status, 0) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("[  PASSED  ] 4 tests"));
}

TEST_P(Mpirun, messages_of_another_size_are_refused) {
  if (GetParam() == 1) return;
  const Ended ended = under_mpirun(GetParam(), "MisfitRank.*");
  for (int r = 0; r < GetParam(); ++r)
    EXPECT_THAT(ended.output, HasSubstr(fmt::format("refused by {}\n", r)));
}

TEST_P(Mpirun, a_late_rank_is_named_by_all) {
  if (GetParam() == 1) return;
  // The exit code is not checked: mpirun reports an error because no rank has finalised MPI.
  const Ended ended = under_mpirun(GetParam(), "LateRank.*");
  size_t named = 0;
  for (size_t at = 0; (at = ended.output.find("named by all", at)) != std::string::npos; ++at) ++named;
  EXPECT_EQ(named, static_cast<size_t>(GetParam())) << ended.output;
}

}  // namespace
}  // namespace tutti::comm

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const bool is_rank = tutti::Environment::of_process().has("OMPI_COMM_WORLD_RANK");
  if (!is_rank) GTEST_FLAG_SET(filter, "*Mpirun*");
  return RUN_ALL_TESTS();
}

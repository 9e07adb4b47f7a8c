// Tests that start this program under mpirun, in worlds of 1 to 4, where each rank runs the tests of a rank.
// These are disabled otherwise.

#include "tutti/transport/mpi/mpi.h"

#include <array>
#include <cstdio>
#include <filesystem>
#include <map>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/environment.h"
#include "tutti/base/test_errors.h"
#include "tutti/comm/collectives.h"
#include "tutti/comm/test_conformance.h"
#include "tutti/transport/test_messages.h"
#include "tutti/transport/test_network.h"

namespace tutti::comm::mpi_test {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kLong;
using testing::meet;
using testing::operation;

// --- tests that run as a rank

// Rank 0 serves the board and tells all others its address.
std::shared_ptr<Rendezvous> board_of_ranks() {
  static const std::shared_ptr<Rendezvous> kBoard = []() -> std::shared_ptr<Rendezvous> {
    mpi_initialise();
    const bool serves = Environment::of_process().get("OMPI_COMM_WORLD_RANK") == "0";
    ServedRendezvous served;
    if (serves) served = testing::serve_board();
    const std::string port = mpi_broadcast_text(std::to_string(served.port), 0, kLong);
    if (serves) return served.board;
    return testing::find_board(static_cast<uint16_t>(std::stoi(port)));
  }();
  return kBoard;
}

std::unique_ptr<Transport> mpi(const std::string& name) {
  return mpi_transport(with_prefix(board_of_ranks(), name + "/"), {.timeout = kLong});
}

TEST(DISABLED_Rank, exchange_moves_messages_of_any_size) {
  testing::exchange_messages_of_any_size(*mpi("exchange"));
}

TEST(DISABLED_Rank, messages_between_two_keep_their_order_beside_exchanges) {
  testing::send_and_recv_beside_exchanges(*mpi("messages"));
}

TEST(DISABLED_Rank, messages_have_tags_and_may_come_from_any) {
  Ranks ranks(mpi("tags"), kLong);
  const auto number_of = [](int64_t& number) {
    return Array{reinterpret_cast<std::byte*>(&number), ElementType::Int64, 1};
  };
  const auto send = [&](int64_t number, int tag) {
    ranks.run_message("send", {0, true}, {},
                      [&](const Operation& operation) { ranks.send(number_of(number), 0, operation, tag); });
  };
  if (ranks.rank() > 0) {
    send(ranks.rank(), 1);
    send(10 * ranks.rank(), 2);
    send(100 * ranks.rank(), 1);
  }
  for (int other = 1; other < ranks.world() && ranks.rank() == 0; ++other) {
    int64_t number = 0;
    ranks.run_message("recv", {other, false, 2}, {}, [&](const Operation& operation) {
      ranks.recv(number_of(number), other, operation, 2);
    });
    EXPECT_EQ(number, 10 * other);
  }
  std::map<int, std::vector<int64_t>> found;  // by sender
  for (int message = 2; message < 2 * ranks.world() && ranks.rank() == 0; ++message) {
    int64_t number = 0;
    ranks.run_message("recv", {-1, false, 1}, {}, [&](const Operation& operation) {
      const int from = ranks.recv_from_any(number_of(number), operation, 1);
      found[from].push_back(number);
    });
  }
  for (const auto& [from, numbers] : found) EXPECT_THAT(numbers, ElementsAre(from, 100 * from));
  EXPECT_EQ(static_cast<int>(found.size()), ranks.rank() == 0 ? ranks.world() - 1 : 0);
}

TEST(DISABLED_Rank, splits_into_smaller_groups) {
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

TEST(DISABLED_Rank, conforms) {
  Collectives comm(mpi("conforms"), kLong);
  check_conformance(comm);
  if (comm.world() == 2) check_large(comm);
}

// The last rank arrives after the others have given up.
TEST(DISABLED_LateRank, is_named_by_all) {
  const auto transport = mpi("late");
  meet(*transport, operation("barrier"));
  const int last = transport->world() - 1;
  const bool late = transport->rank() == last;
  const auto board = with_prefix(board_of_ranks(), "test/");
  if (late) board->get("over", kLong);
  const auto text = fmt::format("all_reduce failed: nothing from rank {} for 0.3 s", last);
  expect_error(ErrorKind::Timeout, HasSubstr(text), [&] {
    meet(*transport, operation("all_reduce", milliseconds(300)));
    // Small messages of the ranks that have given up may still be received, so the late rank fails in
    // its second operation at the latest.
    meet(*transport, operation("all_reduce", milliseconds(300)));
  });
  fmt::print("{}\n", HasFailure() ? "not named" : "named by all");
  std::fflush(stdout);
  // mpirun ends all ranks when the first one exits, and the board ends with rank 0.
  board->set("over", "");
  board->set(fmt::format("done/{}", transport->rank()), "");
  for (int r = 0; r <= last; ++r) board->get(fmt::format("done/{}", r), kLong);
}

TEST(DISABLED_MisfitRank, refuses_messages_of_another_size) {
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

// Runs all tests of a suite as each of the ranks.
Ended under_mpirun(int world, const std::string& suite) {
  const std::string command = fmt::format(
      "mpirun --allow-run-as-root --oversubscribe --bind-to none -np {} {} --gtest_color=no "
      "--gtest_also_run_disabled_tests --gtest_filter='DISABLED_{}.*' 2>&1",
      world, std::filesystem::read_symlink("/proc/self/exe").string(), suite);
  Ended ended{};
  FILE* pipe = ::popen(command.c_str(), "r");
  std::array<char, 4096> piece{};
  while (const size_t size = std::fread(piece.data(), 1, piece.size(), pipe))
    ended.output.append(piece.data(), size);
  ended.status = ::pclose(pipe);
  return ended;
}

// Returns the number of tests in a suite that a rank runs.
int tests_of(const std::string& suite) {
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    if (all.GetTestSuite(i)->name() == "DISABLED_" + suite) return all.GetTestSuite(i)->total_test_count();
  }
  return 0;
}

int count_in(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
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
  const Ended ended = under_mpirun(GetParam(), "Rank");
  EXPECT_EQ(ended.status, 0) << ended.output;
  ASSERT_GT(tests_of("Rank"), 0);
  EXPECT_EQ(count_in(ended.output, fmt::format("[  PASSED  ] {} tests", tests_of("Rank"))), GetParam())
      << ended.output;
}

TEST_P(Mpirun, messages_of_another_size_are_refused) {
  if (GetParam() == 1) return;
  const Ended ended = under_mpirun(GetParam(), "MisfitRank");
  for (int r = 0; r < GetParam(); ++r)
    EXPECT_THAT(ended.output, HasSubstr(fmt::format("refused by {}\n", r)));
}

TEST_P(Mpirun, a_late_rank_is_named_by_all) {
  if (GetParam() == 1) return;
  // The exit code is not checked: mpirun reports an error because no rank has finalised MPI.
  const Ended ended = under_mpirun(GetParam(), "LateRank");
  EXPECT_EQ(count_in(ended.output, "named by all"), GetParam()) << ended.output;
}

}  // namespace
}  // namespace tutti::comm::mpi_test

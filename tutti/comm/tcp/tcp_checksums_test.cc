// Tests that what is changed between two ranks is found, in every kind of operation.
#include <barrier>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/address.h"
#include "tutti/comm/collectives.h"
#include "tutti/comm/test_conformance.h"
#include "tutti/net/credentials.h"
#include "tutti/net/test_cable.h"
#include "tutti/transport/tcp/tcp.h"
#include "tutti/transport/test_messages.h"
#include "tutti/transport/test_network.h"

namespace tutti::comm::tcp_checksums_test {
namespace {

using net::BitFlip;
using net::Cable;
using Way = net::Cable::Way;
using ::testing::AllOf;
using testing::as_ranks;
using testing::expect_no_errors;
using ::testing::HasSubstr;
using testing::kLong;
using testing::names;
using testing::Outcome;

// A board that tells the ranks to connect through a cable.
class BoardWithCables final : public LocalRendezvous {
 public:
  explicit BoardWithCables(Cable::Pass pass) : pass_(std::move(pass)) {}
  void set(const std::string& key, const std::string& value) override {
    const bool is_port = key.find("port/") != std::string::npos && value.find(":0 ") == std::string::npos;
    LocalRendezvous::set(key, is_port ? with_cable(value) : value);
  }

 private:
  // "127.0.0.1:PORT plain", as Place of connections.cc.
  std::string with_cable(const std::string& value) {
    const size_t space = value.find(' ');
    const std::lock_guard lock(mutex_);
    const Cable& cable = cables_.emplace_back(parse_address(value.substr(0, space)).port, pass_);
    return cable.address() + value.substr(space);
  }

  const Cable::Pass pass_;
  std::mutex mutex_;
  std::list<Cable> cables_;  // guarded by mutex_
};

TcpOptions options_of(int rank, int world, net::Checksums checksums = net::Checksums::Always) {
  return {.rank = rank,
          .world = world,
          .who = names(world),
          .credentials = {.checksums = checksums},
          .timeout = kLong};
}

using Body = std::function<void(Collectives& comm)>;

// Connects two ranks through a cable, and runs the body on them.
std::vector<Outcome> run_through(BitFlip& flip, const Body& body) {
  const auto board =
      std::make_shared<BoardWithCables>([&](int connection, Way way, uint64_t offset, std::span<char> bytes) {
        flip.pass(connection, way, offset, bytes);
      });
  return as_ranks(2, [&](int rank) {
    Collectives comm(tcp_transport(board, options_of(rank, 2)), kLong);
    body(comm);
  });
}

// How many bytes of each connection have passed when both ranks have done this, before they leave.
class Passed {
 public:
  explicit Passed(const Body& body) {
    std::barrier<> both(2);
    expect_no_errors(run_through(flip_, [&](Collectives& comm) {
      try {
        body(comm);
      } catch (const std::exception&) {
        both.arrive_and_drop();
        throw;
      }
      both.arrive_and_wait();
      for (const int connection : {0, 1}) {
        for (const Way way : {Way::Forth, Way::Back}) {
          if (comm.rank() == 0) counts_[{connection, way}] = flip_.passed(connection, way);
        }
      }
      both.arrive_and_wait();
    }));
  }
  uint64_t operator()(int connection, Way way) const { return counts_.at({connection, way}); }

 private:
  BitFlip flip_{{}};
  std::map<std::pair<int, Way>, uint64_t> counts_;
};

torch::Tensor values_of(int rank, int64_t size) {
  return torch::arange(size).add(7 * rank).remainder(1000).to(torch::kFloat);
}

void check_sum(Collectives& comm, int64_t size) {
  const torch::Tensor sum = values_of(comm.rank(), size);
  comm.all_reduce(sum, ReduceOp::Sum, {.what = "gradients"}).wait();
  EXPECT_TRUE(torch::equal(sum, values_of(0, size) + values_of(1, size)));
}

void check_broadcast(Collectives& comm, int root) {
  const torch::Tensor copy = values_of(comm.rank(), 70001);
  comm.broadcast(copy, root, {}).wait();
  EXPECT_TRUE(torch::equal(copy, values_of(root, 70001)));
}

void check_gather(Collectives& comm) {
  const torch::Tensor all = torch::empty({2 * 30001});
  comm.all_gather(all, values_of(comm.rank(), 30001), {}).wait();
  EXPECT_TRUE(torch::equal(all, torch::cat({values_of(0, 30001), values_of(1, 30001)})));
}

void check_messages(Collectives& comm) {
  const torch::Tensor bytes = values_of(0, 50001);
  if (comm.rank() == 0) {
    comm.send(bytes, 1, {}).wait();
  } else {
    const torch::Tensor received = torch::empty_like(bytes);
    comm.recv(received, 0, {}).wait();
    EXPECT_TRUE(torch::equal(received, bytes));
  }
}

struct Case {
  const char* name;
  Body body;
};

class TcpChecksums : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Operations, TcpChecksums,
    ::testing::Values(Case{"small_sum", [](Collectives& comm) { check_sum(comm, 100); }},
                      Case{"large_sum", [](Collectives& comm) { check_sum(comm, 600001); }},
                      Case{"broadcast_from_0", [](Collectives& comm) { check_broadcast(comm, 0); }},
                      Case{"broadcast_from_1", [](Collectives& comm) { check_broadcast(comm, 1); }},
                      Case{"gather", check_gather}, Case{"messages", check_messages},
                      Case{"empty", [](Collectives& comm) { check_sum(comm, 0); }}),
    [](const auto& info) { return info.param.name; });

// Changes the first and the last byte of each connection in each way, the bytes of the first record's head,
// and one byte in the middle. Whoever has finished before need not notice. A large sum is sent in fewer
// records if the ranks are faster, and so has fewer bytes.
TEST_P(TcpChecksums, find_a_bit_that_is_changed_anywhere) {
  const Passed connecting([](Collectives&) {});
  const Passed whole(GetParam().body);
  int changed = 0;
  for (const int connection : {0, 1}) {
    for (const Way way : {Way::Forth, Way::Back}) {
      const uint64_t begin = connecting(connection, way);
      const uint64_t end = whole(connection, way);
      if (begin == end) continue;
      for (const uint64_t offset : {begin, begin + 4, begin + 11, begin + 12, (begin + end) / 2, end - 1}) {
        BitFlip flip({connection, way, offset, static_cast<int>(offset % 8)});
        const auto outcomes = run_through(flip, GetParam().body);
        if (!flip.has_happened()) continue;
        const Outcome& first = outcomes[0] ? outcomes[0] : outcomes[1];
        ASSERT_TRUE(first) << offset << " of " << begin << " to " << end;
        EXPECT_EQ(first->kind(), ErrorKind::DataLoss);
        EXPECT_THAT(first->what(), AllOf(HasSubstr("worker/0 (host 0)"), HasSubstr("worker/1 (host 1)"),
                                         HasSubstr(fmt::format("than worker/{}", way == Way::Forth ? 0 : 1)),
                                         HasSubstr("was changed on its way")));
        ++changed;
      }
    }
  }
  EXPECT_GE(changed, 6);
}

TEST(TcpWithChecksums, name_the_operation_to_all_ranks) {
  const Passed connecting([](Collectives&) {});
  BitFlip flip({0, Way::Forth, connecting(0, Way::Forth) + 1000000, 3});
  for (const Outcome& outcome : run_through(flip, [](Collectives& comm) { check_sum(comm, 600001); })) {
    ASSERT_TRUE(outcome);
    EXPECT_EQ(outcome->kind(), ErrorKind::DataLoss);
    EXPECT_THAT(
        outcome->what(),
        AllOf(HasSubstr("all_reduce of gradients failed: worker/1 (host 1) has received other bytes than "
                        "worker/0 (host 0) has sent"),
              HasSubstr("127.0.0.1:")));
  }
}

TEST(TcpWithChecksums, lose_the_connection_if_ranks_may_connect_again) {
  const auto board =
      std::make_shared<BoardWithCables>([](int connection, Way, uint64_t offset, std::span<char> bytes) {
        if (connection == 0 && offset > 20000) bytes.back() = static_cast<char>(bytes.back() ^ 1);
      });
  const auto outcomes = as_ranks(2, [&](int rank) {
    TcpOptions options = options_of(rank, 2);
    options.if_changed = ErrorKind::PeerLost;
    Collectives comm(tcp_transport(board, options), kLong);
    check_sum(comm, 600001);
  });
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome);
    EXPECT_EQ(outcome->kind(), ErrorKind::PeerLost);
    EXPECT_THAT(outcome->what(), HasSubstr("was changed on its way"));
  }
}

// A bit in the words with which the ranks connect: they fail, or it does not matter.
TEST(TcpWithChecksums, find_a_bit_that_is_changed_while_ranks_connect) {
  const Passed connecting([](Collectives&) {});
  for (const Way way : {Way::Forth, Way::Back}) {
    for (const uint64_t offset : {connecting(0, way) / 2, connecting(0, way) - 1}) {
      BitFlip flip({0, way, offset, 2});
      const auto outcomes = run_through(flip, [](Collectives& comm) { check_sum(comm, 100); });
      const Outcome& first = outcomes[0] ? outcomes[0] : outcomes[1];
      ASSERT_TRUE(first) << offset;
      EXPECT_THAT(first->what(), HasSubstr("was changed on its way"));
    }
  }
}

TEST(TcpWithChecksums, do_all_that_others_do) {
  for (const int world : {2, 3, 4}) {
    const auto board = std::make_shared<LocalRendezvous>();
    expect_no_errors(as_ranks(world, [&](int rank) {
      auto transport = tcp_transport(board, options_of(rank, world));
      testing::exchange_messages_of_any_size(*transport);
      testing::send_and_recv_beside_exchanges(*transport);
      Collectives comm(std::move(transport), kLong);
      check_reductions(comm);
      check_combinations(comm);
    }));
  }
}

TEST(TcpWithChecksums, refuse_ranks_of_which_one_wants_none) {
  const auto board = std::make_shared<LocalRendezvous>();
  const auto outcomes = as_ranks(2, [&](int rank) {
    tcp_transport(board, options_of(rank, 2, rank == 0 ? net::Checksums::Always : net::Checksums::Never));
  });
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome);
    EXPECT_THAT(outcome->what(), AllOf(HasSubstr("worker/0"), HasSubstr("--message-checksums")));
  }
}

}  // namespace
}  // namespace tutti::comm::tcp_checksums_test

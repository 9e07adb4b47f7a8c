#include "tutti/transport/hierarchy/hierarchy.h"

#include <atomic>
#include <latch>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/ports.h"
#include "tutti/comm/hierarchy/test_layouts.h"
#include "tutti/comm/test_ranks.h"
#include "tutti/transport/failures.h"
#include "tutti/transport/hierarchy/host_sums.h"
#include "tutti/transport/test_messages.h"
#include "tutti/transport/test_network.h"

namespace tutti::comm::hierarchy_test {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using testing::Child;
using testing::errors_of_ranks;
using ::testing::HasSubstr;
using testing::kLong;
using ::testing::Not;
using testing::with_ranks;
using Tensors = std::vector<torch::Tensor>;

class Hierarchy : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(OnHosts, Hierarchy, ::testing::Values("aabb", "abbb"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Hierarchy, is_a_communicator) { testing::check_communicator_on(GetParam()); }
TEST_P(Hierarchy, sums_have_the_bits_of_one_flat_tree) { testing::check_sums_on(GetParam()); }
TEST_P(Hierarchy, moves_more_than_is_in_flight_at_a_time) { testing::check_long_movements_on(GetParam()); }
TEST_P(Hierarchy, a_part_of_it_is_what_its_layout_says) { testing::check_parts_of(GetParam()); }

TEST_P(Hierarchy, refuses_messages_of_another_size) { with_ranks(GetParam(), 4, check_misfits); }
TEST_P(Hierarchy, refuses_an_empty_tensor_beside_others) {
  with_ranks(GetParam(), 4, check_empty_beside_others);
}
TEST_P(Hierarchy, refuses_different_roots) { with_ranks(GetParam(), 4, check_different_roots); }
TEST(HierarchyOfOneEach, refuses_messages_of_another_size) { with_ranks("abc", 3, check_misfits); }

// --- which ranks are where

RankLayout layout_of(const std::string& hosts) {
  std::vector<std::string> names;
  for (const char host : hosts) names.emplace_back(1, host);
  return *RankLayout::make(names);
}

TEST(RankLayout, knows_the_run_of_each_host) {
  const RankLayout layout = layout_of("abbbcc");
  EXPECT_EQ(layout.hosts(), 3);
  EXPECT_EQ(layout.world(), 6);
  EXPECT_EQ(layout.first(1), 1);
  EXPECT_EQ(layout.size(1), 3);
  EXPECT_EQ(layout.host_of(3), 1);
  EXPECT_EQ(layout.local_rank(3), 2);
  EXPECT_TRUE(layout.has_two_levels());
  EXPECT_FALSE(layout_of("abc").has_two_levels());
  EXPECT_FALSE(layout_of("aaa").has_two_levels());
  EXPECT_EQ(RankLayout::make({"a", "b", "a"}), std::nullopt);
}

TEST(Shares, cover_what_each_owns_once_for_every_host) {
  for (const char* hosts : {"ab", "aab", "abb", "aabb", "abbb", "aabbc", "aaabbbb", "aaabbbcc"}) {
    const RankLayout layout = layout_of(hosts);
    const Shares shares(layout, slices_by_host(layout, 10001));
    for (int owner = 0; owner < layout.world(); ++owner) {
      for (int host = 0; host < layout.hosts(); ++host) {
        int64_t end = shares.own(owner).begin;
        for (int i = 0; i < layout.size(host); ++i) {
          const ElementRange share = shares.between(layout.first(host) + i, owner);
          if (share.size() == 0) continue;
          EXPECT_EQ(share.begin, end) << hosts;
          end = share.end;
        }
        EXPECT_EQ(end, shares.own(owner).end) << hosts;
      }
    }
  }
}

// The barrier keeps ranks from leaving while others still connect.
TEST(HierarchyName, says_what_it_is_made_of) {
  with_ranks("aab", 3, [](Communicator& comm) {
    EXPECT_EQ(comm.name(), "shm+tcp");
    comm.barrier();
  });
  with_ranks("aba", 3, [](Communicator& comm) {
    EXPECT_EQ(comm.name(), "tcp");
    EXPECT_EQ(comm.hosts(), nullptr);
    comm.barrier();
  });
}

TEST(HierarchyHosts, share_memory_inside) {
  with_ranks("aabbb", 5, [](Communicator& comm) {
    EXPECT_EQ(comm.shared(), nullptr);
    const Hosts* hosts = comm.hosts();
    ASSERT_NE(hosts, nullptr);
    Communicator& inside = hosts->inside;
    EXPECT_EQ(inside.world(), comm.rank() < 2 ? 2 : 3);
    EXPECT_EQ(inside.rank(), hosts->layout.local_rank(comm.rank()));
    EXPECT_EQ(hosts->layout.host_of(comm.rank()), comm.rank() < 2 ? 0 : 1);
    ASSERT_NE(inside.shared(), nullptr);
    const torch::Tensor vector = inside.shared()->allocate(1000, torch::kFloat);
    vector.fill_(comm.rank());
    inside.shared()->sync();
    const Tensors all = inside.shared()->everyones(vector);
    for (int i = 0; i < inside.world(); ++i)
      EXPECT_EQ(all[static_cast<size_t>(i)][999].item<float>(), comm.rank() - inside.rank() + i);
    inside.shared()->sync();
    inside.all_reduce(vector, ReduceOp::Sum).wait();
    EXPECT_EQ(vector[5].item<float>(), comm.rank() < 2 ? 1 : 9);
  });
}

// Counts the bytes that are received over a network.
class Counted final : public testing::ForwardingTransport {
 public:
  Counted(std::unique_ptr<Transport> network, std::atomic<size_t>& bytes)
      : ForwardingTransport(std::move(network)), bytes_(bytes) {}
  void exchange(std::span<const ConstBytes> sends, std::span<const Bytes> recvs,
                const Operation& operation) override {
    for (int r = 0; r < world(); ++r) bytes_ += r == rank() ? 0 : recvs[static_cast<size_t>(r)].size();
    ForwardingTransport::exchange(sends, recvs, operation);
  }
  Failures* failures() override { return inner().failures(); }

 private:
  std::atomic<size_t>& bytes_;
};

// Returns the number of bytes that all hosts together receive.
size_t bytes_over_network(const std::string& hosts, const std::function<void(Communicator&)>& body) {
  std::atomic<size_t> bytes = 0;
  const RankLayout layout = layout_of(hosts);
  const auto board = std::make_shared<LocalRendezvous>();
  testing::expect_no_errors(testing::as_ranks(layout.world(), [&](int rank) {
    const int host = layout.host_of(rank);
    auto network = std::make_unique<Counted>(
        tcp_transport(with_prefix(board, "tcp/"), {.rank = rank, .world = layout.world()}), bytes);
    auto memory = shm_transport(with_prefix(board, std::to_string(host) + "/"),
                                {layout.local_rank(rank), layout.size(host), {}, kLong});
    Collectives comm(
        std::make_unique<HierarchyTransport>(std::move(network), std::move(memory), layout, kLong), kLong);
    body(comm);
  }));
  return bytes;
}

TEST(HierarchyTraffic, comes_to_each_host_once) {
  constexpr int64_t kSize = 64000;
  constexpr size_t kBytes = kSize * sizeof(float);
  const auto sum = [](Communicator& comm) { comm.all_reduce(torch::ones({kSize}), ReduceOp::Sum).wait(); };
  // Each host receives half of the bytes as the sums of the other host, and half as the result.
  EXPECT_EQ(bytes_over_network("aabb", sum), 2 * kBytes);
  EXPECT_EQ(bytes_over_network("aaaabbbb", sum), 2 * kBytes);
  // Ranks 1 to 3 form two branches of the tree.
  EXPECT_EQ(bytes_over_network("abbb", sum), kBytes / 2 * 3 + kBytes);
  const auto gather = [](Communicator& comm) {
    comm.all_gather(torch::empty({comm.world() * kSize}), torch::ones({kSize})).wait();
  };
  EXPECT_EQ(bytes_over_network("aabb", gather), 4 * kBytes);
  EXPECT_EQ(bytes_over_network("abbb", gather), 4 * kBytes);
  const auto broadcast = [](Communicator& comm) { comm.broadcast(torch::ones({kSize}), 0).wait(); };
  EXPECT_EQ(bytes_over_network("aabbb", broadcast), kBytes);
  const auto scatter = [](Communicator& comm) {
    comm.reduce_scatter(torch::empty({kSize}), torch::ones({comm.world() * kSize}), ReduceOp::Sum).wait();
  };
  EXPECT_EQ(bytes_over_network("aabb", scatter), 4 * kBytes);
}

// --- how it fails

constexpr const char* kHosts = "aabb";

void add(Communicator& comm, milliseconds timeout = kLong) {
  comm.all_reduce(torch::zeros({100000}), ReduceOp::Sum,
                  {.timeout = timeout, .what = "gradients", .step = 118})
      .wait();
}

// Expects the same text, which must match, from all ranks but `except`.
void expect_one_text(const std::vector<std::string>& errors, const ::testing::Matcher<std::string>& text,
                     int except = -1) {
  const std::string& first = errors[except == 0 ? 1 : 0];
  EXPECT_THAT(first, text);
  for (size_t r = 0; r < errors.size(); ++r) {
    if (static_cast<int>(r) == except) continue;
    EXPECT_EQ(errors[r], first) << "rank " << r;
  }
}

class HierarchyFailure : public ::testing::TestWithParam<int> {
 protected:
  int guilty() const { return GetParam(); }
  std::string name() const { return fmt::format("worker/{} on {}", guilty(), kHosts[guilty()]); }
  // Matches if the text names the guilty rank and none of the others.
  ::testing::Matcher<std::string> names_it_alone() const {
    std::vector<::testing::Matcher<std::string>> all = {HasSubstr(name())};
    for (int r = 0; r < 4; ++r) {
      if (r != guilty()) all.emplace_back(Not(HasSubstr(fmt::format("worker/{}", r))));
    }
    return ::testing::AllOfArray(all);
  }
};
INSTANTIATE_TEST_SUITE_P(OfRank, HierarchyFailure, ::testing::Values(0, 3));

TEST_P(HierarchyFailure, a_rank_that_does_not_come_is_named_by_all) {
  std::latch over(3);
  const auto errors = errors_of_ranks(kHosts, 4, milliseconds(1500), [&](Communicator& comm) {
    comm.barrier({.timeout = kLong, .what = "the start"});
    if (comm.rank() == guilty()) {
      over.wait();
      // Learns of the failure when it arrives.
      add(comm);
      return;
    }
    try {
      add(comm);
    } catch (const Error&) {
      over.count_down();
      throw;
    }
  });
  expect_one_text(
      errors, AllOf(HasSubstr("all_reduce of gradients at step 118 failed: nothing from"), names_it_alone()));
}

TEST_P(HierarchyFailure, a_rank_that_leaves_is_named_by_all_others) {
  const auto errors = errors_of_ranks(kHosts, 4, kLong, [&](Communicator& comm) {
    comm.barrier();
    if (comm.rank() != guilty()) add(comm);
  });
  expect_one_text(errors, AllOf(HasSubstr("is gone"), names_it_alone()), guilty());
}

TEST_P(HierarchyFailure, a_rank_that_gives_up_tells_all_why) {
  const auto errors = errors_of_ranks(kHosts, 4, kLong, [&](Communicator& comm) {
    if (comm.rank() == guilty()) comm.abandon("the data ended");
    add(comm);
  });
  expect_one_text(errors, "the data ended");
}

TEST_P(HierarchyFailure, a_failure_inside_a_host_fails_everywhere) {
  const auto errors = errors_of_ranks(kHosts, 4, kLong, [&](Communicator& comm) {
    Communicator& inside = comm.hosts()->inside;
    if (comm.rank() == guilty()) inside.abandon("the disk is on fire");
    if (comm.rank() / 2 == guilty() / 2) {
      inside.shared()->sync();
    } else {
      add(comm);
    }
  });
  expect_one_text(errors, "the disk is on fire");
}

TEST_P(HierarchyFailure, a_failure_elsewhere_ends_a_wait_inside_a_host) {
  const auto errors = errors_of_ranks(kHosts, 4, kLong, [&](Communicator& comm) {
    Communicator& inside = comm.hosts()->inside;
    if (comm.rank() == guilty()) {
      std::this_thread::sleep_for(milliseconds(300));
      comm.abandon("the disk is on fire");
    }
    inside.shared()->sync();
    add(comm);
  });
  expect_one_text(errors, "the disk is on fire");
}

TEST_P(HierarchyFailure, a_late_rank_inside_a_host_is_named_by_all) {
  std::latch over(3);
  const auto errors = errors_of_ranks(kHosts, 4, milliseconds(1500), [&](Communicator& comm) {
    Communicator& inside = comm.hosts()->inside;
    comm.barrier({.timeout = kLong});
    if (comm.rank() == guilty()) over.wait();
    try {
      inside.shared()->sync({.what = "gradients", .step = 5});
      add(comm);
    } catch (const Error&) {
      if (comm.rank() != guilty()) over.count_down();
      throw;
    }
  });
  expect_one_text(errors, names_it_alone());
}

TEST(HierarchyFailures, a_rank_that_does_something_else_in_its_host_is_named_by_all) {
  const auto errors = errors_of_ranks(kHosts, 4, kLong, [&](Communicator& comm) {
    if (comm.rank() == 3) {
      comm.barrier();
    } else {
      add(comm);
    }
  });
  expect_one_text(errors, AllOf(HasSubstr("worker/2"), HasSubstr("all_reduce"), HasSubstr("worker/3"),
                                HasSubstr("barrier")));
}

// Sizes, types and reductions differ by local rank, in the same way on both hosts: each rank agrees with its
// counterpart on the other host.
TEST(HierarchyFailures, operations_that_differ_inside_the_hosts_fail_everywhere) {
  using Body = std::function<void(Communicator&, int local)>;
  const std::vector<Body> bodies = {
      [](Communicator& comm, int local) {
        comm.all_reduce(torch::ones({100 + local}), ReduceOp::Sum).wait();
      },
      [](Communicator& comm, int local) {
        comm.all_reduce(torch::ones({100000 + local}), ReduceOp::Sum).wait();
      },
      [](Communicator& comm, int local) {
        comm.all_reduce(torch::ones({100}, local == 0 ? torch::kFloat : torch::kInt), ReduceOp::Sum).wait();
      },
      [](Communicator& comm, int local) {
        comm.all_reduce(torch::ones({100}), local == 0 ? ReduceOp::Sum : ReduceOp::Max).wait();
      },
      [](Communicator& comm, int local) {
        comm.reduce_scatter(torch::empty({100 + local}), torch::ones({4 * (100 + local)}), ReduceOp::Sum)
            .wait();
      },
      [](Communicator& comm, int local) {
        comm.all_gather(torch::empty({4 * (100 + local)}), torch::ones({100 + local})).wait();
      },
      [](Communicator& comm, int local) { comm.broadcast(torch::ones({100 + local}), 0).wait(); },
  };
  for (const Body& body : bodies) {
    const auto errors = errors_of_ranks(kHosts, 4, kLong, [&](Communicator& comm) {
      body(comm, comm.hosts()->layout.local_rank(comm.rank()));
    });
    expect_one_text(errors, HasSubstr("every rank has to call the same operations"));
  }
}

TEST(HierarchyFailures, messages_of_ranks_that_have_left_fail) {
  const auto errors = errors_of_ranks(kHosts, 4, kLong, [&](Communicator& comm) {
    comm.barrier();
    if (comm.rank() == 3) return;
    // Rank 2 is on the same host as rank 3.
    comm.recv(torch::empty({5}), 3).wait();
  });
  expect_one_text(errors, HasSubstr("recv from rank 3 failed: worker/3 on b"), 3);
}

// The ranks are processes: three children and this one, rank 0. The board records how each child ended.
class HierarchyProcesses : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    port_ = static_cast<uint16_t>(free_ports(1)[0]);
    for (int rank = 1; rank < 4; ++rank) {
      children_.push_back(std::make_unique<Child>([this, rank] {
        at::set_num_threads(1);
        const auto board = testing::find_board(port_);
        board->set(fmt::format("said/{}", rank), error_of(board, rank));
      }));
    }
    board_ = testing::serve_board(port_).board;
  }

  static std::string error_of(const std::shared_ptr<Rendezvous>& board, int rank) {
    // Longer than a busy machine keeps a process from its work.
    constexpr milliseconds kTimeout{5000};
    try {
      Collectives comm(testing::transport_on_hosts(kHosts, rank, with_prefix(board, "comm/"), kLong), kLong);
      for (int step = 0;; ++step) {
        add(comm, step <= 2 ? kLong : kTimeout);
        if (step == 2) board->set(fmt::format("ready/{}", rank), "");
      }
    } catch (const std::exception& error) {
      return error.what();
    }
  }

  // Returns the errors of all ranks but the victim after `deed` was applied to the victim.
  std::vector<std::string> after(const std::function<void(const Child&)>& deed) {
    std::thread doer([&] {
      for (int rank = 0; rank < 4; ++rank) board_->get(fmt::format("ready/{}", rank), kLong);
      deed(*children_[static_cast<size_t>(GetParam()) - 1]);
    });
    std::vector<std::string> errors = {error_of(board_, 0)};
    doer.join();
    for (int rank = 1; rank < 4; ++rank)
      errors.push_back(rank == GetParam() ? "" : board_->get(fmt::format("said/{}", rank), kLong));
    return errors;
  }

 private:
  uint16_t port_ = 0;
  std::vector<std::unique_ptr<Child>> children_;
  std::shared_ptr<Rendezvous> board_;
};
// The victims: a rank on the host of rank 0, and those on the other host.
INSTANTIATE_TEST_SUITE_P(OfRank, HierarchyProcesses, ::testing::Values(1, 2, 3));

TEST_P(HierarchyProcesses, one_that_is_killed_is_named_by_all_others_at_once) {
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = after([](const Child& child) { child.kill(); });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  expect_one_text(errors, AllOf(HasSubstr(fmt::format("worker/{} on", GetParam())), HasSubstr("is gone")),
                  GetParam());
}

TEST_P(HierarchyProcesses, one_that_is_stopped_is_named_by_all_others_when_the_time_is_over) {
  const auto errors = after([](const Child& child) { child.stop(); });
  expect_one_text(errors,
                  AllOf(HasSubstr("at step 118 failed: "),
                        HasSubstr(fmt::format("nothing from worker/{} on", GetParam()))),
                  GetParam());
}

}  // namespace
}  // namespace tutti::comm::hierarchy_test

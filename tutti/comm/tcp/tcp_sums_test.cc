// Tests sums over TCP, which are added on the way: their bits, and how they fail.
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/ports.h"
#include "tutti/base/test_errors.h"
#include "tutti/comm/hierarchy/test_layouts.h"
#include "tutti/comm/test_conformance.h"
#include "tutti/comm/test_ranks.h"
#include "tutti/transport/reduce.h"
#include "tutti/transport/test_messages.h"
#include "tutti/transport/test_network.h"

namespace tutti::comm::tcp_sums_test {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using testing::Child;
using testing::errors_of_ranks;
using ::testing::HasSubstr;
using testing::kLong;
using ::testing::Not;
using testing::with_ranks;

// Each rank on a host of its own: nothing but TCP.
std::string apart(int world) { return std::string("abcdefgh").substr(0, static_cast<size_t>(world)); }

class TcpSums : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, TcpSums, ::testing::Range(2, 9));

TEST_P(TcpSums, are_those_of_a_communicator) {
  with_ranks(apart(GetParam()), GetParam(), [](Communicator& comm) {
    ASSERT_EQ(comm.name(), "tcp");
    check_reductions(comm);
    check_combinations(comm);
  });
}

TEST_P(TcpSums, have_the_bits_of_one_flat_tree) { testing::check_sums_on(apart(GetParam())); }

TEST_P(TcpSums, refuse_an_empty_tensor_beside_others) {
  with_ranks(apart(GetParam()), GetParam(), check_empty_beside_others);
}
TEST_P(TcpSums, refuse_different_roots) { with_ranks(apart(GetParam()), GetParam(), check_different_roots); }
TEST_P(TcpSums, refuse_what_does_not_fit) { with_ranks(apart(GetParam()), GetParam(), check_misfits); }

// Inputs whose order matters, in the in-place form that training uses; more than one per rank.
TEST_P(TcpSums, of_several_inputs_have_the_bits_of_the_tree) {
  const int world = GetParam();
  constexpr int64_t kSize = 1000003;
  std::vector<Source> leaves;
  std::vector<torch::Tensor> inputs;
  for (int r = 0; r < world; ++r) {
    for (int i = 0; i < 1 + (r * 5 + 1) % 3; ++i) {
      leaves.push_back({{0, static_cast<int64_t>(leaves.size())}, r, leaves.size() % 4 != 2});
      inputs.push_back(torch::randn({kSize}));
    }
  }
  const Sources sources = sources_of(leaves, static_cast<int64_t>(leaves.size()));
  std::vector<const std::byte*> from;
  for (const torch::Tensor& input : inputs) from.push_back(static_cast<const std::byte*>(input.data_ptr()));
  const Reduction reduction{.type = ElementType::Float32, .op = ReduceOp::Sum, .count = kSize, .divisor = 3};
  const torch::Tensor expected = torch::empty({kSize});
  auto* const to = static_cast<std::byte*>(expected.data_ptr());
  reduce(from, {&to, 1}, reduction, sources.program);
  std::vector<ElementRange> slices;  // the later ones are longer
  for (int r = 0; r < world; ++r)
    slices.push_back({kSize * r * r / (world * world), kSize * (r + 1) * (r + 1) / (world * world)});
  with_ranks(apart(world), world, [&](Communicator& comm) {
    const ElementRange own = slices[static_cast<size_t>(comm.rank())];
    for (const bool scatter : {false, true, false}) {
      SlicedSum sum{reduction, &sources, {}, {torch::empty({kSize})}};
      for (size_t i = 0; i < inputs.size(); ++i) {
        sum.inputs.push_back(leaves[i].rank == comm.rank() ? inputs[i].clone() : torch::Tensor());
        if (sum.inputs.back().defined()) sum.outputs = {sum.inputs.back()};
      }
      if (scatter) {
        sum.slices = slices;
        sum.outputs = {sum.outputs[0].narrow(0, own.begin, own.size())};
      }
      comm.combine({&sum, 1}).wait();
      EXPECT_TRUE(
          torch::equal(sum.outputs[0], scatter ? expected.narrow(0, own.begin, own.size()) : expected))
          << world;
    }
  });
}

// A rank that is behind slows the others down, but none waits for another for ever.
TEST(TcpSumsOfUnequalRanks, wait_for_one_that_is_late) {
  const std::string ranks = apart(4);
  with_ranks(ranks, 4, [&](Communicator& comm) {
    for (int late = 0; late < 4; ++late) {
      if (comm.rank() == late) std::this_thread::sleep_for(milliseconds(50));
      const torch::Tensor ones = torch::ones({3000001});
      comm.all_reduce(ones, ReduceOp::Sum).wait();
      EXPECT_TRUE(torch::equal(ones, torch::full_like(ones, 4)));
    }
  });
}

// --- operations that differ

struct Different {
  const char* name;
  std::function<void(Communicator&, bool odd)> body;
  std::vector<std::string> words;  // that the error contains
};

void sum_of(Communicator& comm, int64_t size, torch::ScalarType type = torch::kFloat,
            ReduceOp op = ReduceOp::Sum) {
  comm.all_reduce(torch::ones({size}, type), op, {.what = "x"}).wait();
}

const std::vector<Different> kDifferent = {
    {"Sizes",
     [](Communicator& comm, bool odd) { sum_of(comm, odd ? 101 : 100); },
     {"(100 float32)", "(101 "}},
    {"LargeSizes",
     [](Communicator& comm, bool odd) { sum_of(comm, odd ? 1000001 : 1000000); },
     {"(1000000 float32)", "(1000001 "}},
    {"SmallAndLarge",
     [](Communicator& comm, bool odd) { sum_of(comm, odd ? 1000000 : 1000); },
     {"(1000 float32)", "(1000000 "}},
    {"Types",
     [](Communicator& comm, bool odd) { sum_of(comm, 100000, odd ? torch::kInt : torch::kFloat); },
     {"(100000 float32)", "(100000 int32)"}},
    {"Reductions",
     [](Communicator& comm, bool odd) {
       sum_of(comm, 100000, torch::kFloat, odd ? ReduceOp::Max : ReduceOp::Sum);
     },
     {"(100000 float32)", "(100000 float32, max)"}},
    {"Operations",
     [](Communicator& comm, bool odd) { odd ? comm.barrier().wait() : sum_of(comm, 100000); },
     {"all_reduce of x", "barrier"}},
    {"Gathers",
     [](Communicator& comm, bool odd) {
       const torch::ScalarType type = odd ? torch::kInt : torch::kFloat;
       comm.all_gather(torch::empty({7 * comm.world()}, type), torch::zeros({7}, type)).wait();
     },
     {"float32)", "int32)"}},
    {"Broadcasts",
     [](Communicator& comm, bool odd) { comm.broadcast(torch::zeros({odd ? 100001 : 100000}), 0).wait(); },
     {"(100000 float32)", "(100001 float32)"}},
};

class TcpDifferences : public ::testing::TestWithParam<std::tuple<size_t, int>> {};
INSTANTIATE_TEST_SUITE_P(Ranks, TcpDifferences,
                         ::testing::Combine(::testing::Range<size_t>(0, kDifferent.size()),
                                            ::testing::Values(2, 3, 5)),
                         [](const auto& info) {
                           return kDifferent[std::get<0>(info.param)].name +
                                  std::to_string(std::get<1>(info.param));
                         });

TEST_P(TcpDifferences, are_an_error_that_names_both) {
  const Different& different = kDifferent[std::get<0>(GetParam())];
  const int world = std::get<1>(GetParam());
  const auto errors = errors_of_ranks(apart(world), world, kLong, [&](Communicator& comm) {
    const bool odd = comm.rank() == world - 1;
    different.body(comm, odd);
    comm.barrier();  // a rank may have sent all before the error was found
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error, errors[0]);
    EXPECT_THAT(error, AllOf(HasSubstr(fmt::format("worker/{} on", world - 1)), HasSubstr(" while worker/"),
                             HasSubstr("every rank has to call the same operations")));
    for (const std::string& word : different.words) EXPECT_THAT(error, HasSubstr(word));
  }
}

// The messages of an earlier operation are not taken for those of a later one of the same kind.
TEST(TcpDifference, a_message_that_nobody_expects_is_found) {
  const auto errors = errors_of_ranks("ab", 2, kLong, [](Communicator& comm) {
    const int64_t sent = comm.rank() == 0 ? 3 : 0;
    const std::vector<torch::Tensor> inputs = {torch::zeros({0}), torch::zeros({sent})};
    std::vector<torch::Tensor> outputs(2, torch::zeros({0}));
    comm.all_to_all_uneven(outputs, comm.rank() == 0 ? inputs : outputs).wait();
    std::vector<torch::Tensor> rooms = {torch::zeros({comm.rank() == 1 ? 3 : 0}), torch::zeros({0})};
    comm.all_to_all_uneven(rooms, comm.rank() == 0 ? inputs : outputs).wait();
    comm.barrier();
  });
  for (const std::string& error : errors)
    EXPECT_THAT(error, AllOf(HasSubstr("worker/0"), HasSubstr("worker/1")));
}

TEST(TcpDifference, a_message_of_no_bytes_is_one_too) {
  for (const int64_t sent : {0, 5}) {
    const auto errors = errors_of_ranks("ab", 2, kLong, [&](Communicator& comm) {
      if (comm.rank() == 0) {
        comm.send(torch::zeros({sent}), 1).wait();
        comm.barrier();
      } else {
        comm.recv(torch::zeros({5 - sent}), 0).wait();
      }
    });
    for (const std::string& error : errors)
      EXPECT_THAT(error,
                  AllOf(HasSubstr(fmt::format("worker/1 on b expects {} float32 from worker/0", 5 - sent)),
                        HasSubstr(fmt::format("which sends {} float32", sent))));
  }
}

// --- processes that are lost in the middle of a sum

// The ranks are processes: children, and this one, rank 0. They add 32 MB again and again.
class TcpLosses : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  int world() const { return std::get<0>(GetParam()); }
  int victim() const { return std::get<1>(GetParam()) < 0 ? world() - 1 : std::get<1>(GetParam()); }

  void SetUp() override {
    port_ = static_cast<uint16_t>(free_ports(1)[0]);
    for (int rank = 1; rank < world(); ++rank) {
      children_.push_back(std::make_unique<Child>([this, rank] {
        at::set_num_threads(1);
        const auto board = testing::find_board(port_);
        board->set(fmt::format("said/{}", rank), error_of(board, rank));
      }));
    }
    board_ = testing::serve_board(port_).board;
  }

  // How long a rank waits once all have added: longer than a busy machine keeps a process from its work.
  static constexpr milliseconds kTimeout{5000};

  std::string error_of(const std::shared_ptr<Rendezvous>& board, int rank) const {
    const torch::Tensor values = torch::ones({8 << 20});
    try {
      Collectives comm(testing::transport_on_hosts(apart(world()), rank, with_prefix(board, "comm/"), kLong),
                       kLong);
      for (int64_t step = 0;; ++step) {
        const milliseconds timeout = step <= 2 ? kLong : kTimeout;
        comm.all_reduce(values, ReduceOp::Average, {.timeout = timeout, .what = "gradients", .step = step})
            .wait();
        if (step == 2) board->set(fmt::format("ready/{}", rank), "");
      }
    } catch (const std::exception& error) {
      return error.what();
    }
  }

  // Returns the errors of all ranks but the victim after `deed` was applied to the victim.
  std::vector<std::string> after(const std::function<void(const Child&)>& deed) {
    std::thread doer([&] {
      for (int rank = 0; rank < world(); ++rank) board_->get(fmt::format("ready/{}", rank), kLong);
      deed(*children_[static_cast<size_t>(victim()) - 1]);
    });
    std::vector<std::string> errors = {error_of(board_, 0)};
    doer.join();
    for (int rank = 1; rank < world(); ++rank)
      errors.push_back(rank == victim() ? errors[0] : board_->get(fmt::format("said/{}", rank), kLong));
    return errors;
  }

 private:
  uint16_t port_ = 0;
  std::vector<std::unique_ptr<Child>> children_;
  std::shared_ptr<Rendezvous> board_;
};
INSTANTIATE_TEST_SUITE_P(Ranks, TcpLosses,
                         ::testing::Values(std::tuple(2, 1), std::tuple(3, 1), std::tuple(4, -1)));

TEST_P(TcpLosses, one_that_is_killed_in_a_sum_is_named_by_all_others) {
  for (const std::string& error : after([](const Child& child) { child.kill(); })) {
    EXPECT_THAT(error, AllOf(HasSubstr("all_reduce of gradients at step"),
                             HasSubstr(fmt::format("worker/{} on", victim())), HasSubstr("is gone")));
  }
}

TEST_P(TcpLosses, one_that_is_stopped_in_a_sum_is_named_by_all_others_when_the_time_is_over) {
  for (const std::string& error : after([](const Child& child) { child.stop(); })) {
    EXPECT_THAT(error,
                AllOf(HasSubstr("all_reduce of gradients at step"),
                      HasSubstr(fmt::format("nothing from worker/{} on", victim())), HasSubstr("for 5 s")));
    for (int rank = 0; rank < world(); ++rank) {
      if (rank == victim()) continue;
      EXPECT_THAT(error, Not(HasSubstr(fmt::format("from worker/{} ", rank))));
    }
  }
}

}  // namespace
}  // namespace tutti::comm::tcp_sums_test

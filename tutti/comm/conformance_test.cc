#include <barrier>
#include <chrono>
#include <fstream>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/comm/test_conformance.h"
#include "tutti/comm/test_ranks.h"
#include "tutti/transport/test_network.h"

namespace tutti::comm::conformance_test {
namespace {

using testing::errors_of_ranks;
using testing::with_ranks;

class Conformance : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  std::string backend() const { return std::get<0>(GetParam()); }
  int world() const { return std::get<1>(GetParam()); }
  void on_all_ranks(const std::function<void(Communicator&)>& body) { with_ranks(backend(), world(), body); }
};

TEST_P(Conformance, reduces) { on_all_ranks(check_reductions); }
TEST_P(Conformance, combines) { on_all_ranks(check_combinations); }
TEST_P(Conformance, moves) { on_all_ranks(check_movements); }
TEST_P(Conformance, takes_strided_and_empty_tensors) { on_all_ranks(check_strided_and_empty); }
TEST_P(Conformance, sends_and_receives) { on_all_ranks(check_messages); }
TEST_P(Conformance, keeps_the_order_of_what_runs_behind) { on_all_ranks(check_order_behind); }
TEST_P(Conformance, splits) { on_all_ranks(check_split); }
TEST_P(Conformance, refuses_messages_of_another_size) { on_all_ranks(check_misfits); }
TEST_P(Conformance, refuses_an_empty_tensor_beside_others) { on_all_ranks(check_empty_beside_others); }
TEST_P(Conformance, refuses_different_roots) { on_all_ranks(check_different_roots); }
TEST_P(Conformance, refuses_bad_arguments) { on_all_ranks(check_bad_arguments); }

std::string name_of(const ::testing::TestParamInfo<std::tuple<std::string, int>>& info) {
  return std::get<0>(info.param) + "_" + std::to_string(std::get<1>(info.param));
}

const auto kBackends = ::testing::Values("inproc", "plain", "shm");
INSTANTIATE_TEST_SUITE_P(Backends, Conformance, ::testing::Combine(kBackends, ::testing::Values(1, 2, 3, 5)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Soak, Conformance, ::testing::Combine(kBackends, ::testing::Values(4, 6, 7, 8)),
                         name_of);

class ConformanceOfTwo : public ::testing::TestWithParam<std::string> {};

TEST_P(ConformanceOfTwo, reduces_64_megabytes) { with_ranks(GetParam(), 2, check_large); }

// Computes the tree in a different way, from the top.
torch::Tensor tree_sum(const std::vector<torch::Tensor>& inputs, size_t begin, size_t width) {
  if (width == 1) return inputs[begin];
  const size_t half = width / 2;
  if (begin + half >= inputs.size()) return tree_sum(inputs, begin, half);
  return tree_sum(inputs, begin, half) + tree_sum(inputs, begin + half, half);
}

TEST(SumOverRanks, adds_along_the_tree_over_every_backend) {
  for (const char* backend : {"inproc", "plain", "shm"}) {
    for (const int world : {2, 3, 4, 5, 6, 7, 8}) {
      for (const int64_t size : {1, 100, 4096, 4097, 50000, 700001}) {
        std::vector<torch::Tensor> inputs;
        for (int r = 0; r < world; ++r) inputs.push_back(torch::randn({size}));
        const torch::Tensor expected = tree_sum(inputs, 0, 8);
        with_ranks(backend, world, [&](Communicator& comm) {
          const torch::Tensor mine = inputs[static_cast<size_t>(comm.rank())].clone();
          comm.all_reduce(mine, ReduceOp::Sum).wait();
          EXPECT_TRUE(torch::equal(mine, expected)) << world << " ranks, " << size;
        });
      }
    }
  }
}

TEST_P(ConformanceOfTwo, names_a_rank_that_does_not_come) {
  const auto errors = errors_of_ranks(GetParam(), 3, std::chrono::milliseconds(300), [](Communicator& comm) {
    comm.barrier({.timeout = testing::kLong, .what = "the start"});
    if (comm.rank() == 1) {
      // This rank neither joins nor leaves until the others have given up.
      EXPECT_THROW(comm.recv(torch::zeros({1}), 0, {.timeout = std::chrono::seconds(30)}).wait(), Error);
      return;
    }
    comm.all_reduce(torch::zeros({100}), ReduceOp::Sum, {.what = "gradients", .step = 118}).wait();
  });
  EXPECT_EQ(errors[0], errors[2]);
  for (const char* part : {"all_reduce of gradients", "step 118", "worker/1", "barrier of the start",
                           "and waits in recv (1 float32) from rank 0"})
    EXPECT_NE(errors[0].find(part), std::string::npos) << errors[0];
}

TEST_P(ConformanceOfTwo, names_a_rank_that_has_left) {
  const auto errors = errors_of_ranks(GetParam(), 3, std::chrono::seconds(60), [](Communicator& comm) {
    if (comm.rank() == 2) return;
    comm.all_reduce(torch::zeros({100}), ReduceOp::Sum).wait();
  });
  EXPECT_EQ(errors[0], errors[1]);
  EXPECT_NE(errors[0].find("worker/2"), std::string::npos) << errors[0];
}

// Rank 0 leaves first, and may have held what the ranks meet by.
TEST(ARankThatHasLeft, is_not_missed_by_those_who_do_not_need_it) {
  for (const std::string backend : {"inproc", "plain", "shm", "abc", "aab", "abb"}) {
    std::promise<void> left;
    const auto has_left = left.get_future().share();
    const auto make = testing::make_transports(backend, 3, std::chrono::seconds(60));
    const auto errors = testing::as_ranks(3, [&](int rank) {
      std::unique_ptr<Communicator> comm =
          std::make_unique<Collectives>(make(rank), std::chrono::seconds(60));
      const torch::Tensor value = torch::full({3}, rank);
      comm->all_reduce(value, ReduceOp::Sum).wait();
      if (rank == 0) {
        comm.reset();
        left.set_value();
        return;
      }
      // Rank 2 waits for rank 1, which waits until rank 0 is gone.
      if (rank == 1) has_left.wait();
      rank == 1 ? comm->send(value, 2).wait() : comm->recv(value, 1).wait();
    });
    for (const auto& error : errors) EXPECT_FALSE(error) << backend << ": " << error->what();
  }
}

TEST_P(ConformanceOfTwo, says_why_a_rank_gave_up) {
  const auto errors = errors_of_ranks(GetParam(), 3, std::chrono::seconds(60), [](Communicator& comm) {
    if (comm.rank() == 1) comm.abandon("worker/1 gave up: the data ended");
    comm.all_reduce(torch::zeros({100}), ReduceOp::Sum).wait();
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "worker/1 gave up: the data ended");
}

TEST_P(ConformanceOfTwo, names_two_ranks_that_do_different_things) {
  const auto errors = errors_of_ranks(GetParam(), 3, std::chrono::seconds(60), [](Communicator& comm) {
    if (comm.rank() == 1) {
      comm.barrier();
    } else {
      comm.all_reduce(torch::zeros({100}), ReduceOp::Sum).wait();
    }
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error, errors[0]);
    for (const char* part : {"worker/0", "all_reduce (100 float32)", "worker/1", "barrier"})
      EXPECT_NE(error.find(part), std::string::npos) << error;
  }
}

TEST_P(ConformanceOfTwo, names_the_rank_whose_message_does_not_come) {
  const auto errors = errors_of_ranks(GetParam(), 3, std::chrono::milliseconds(300), [](Communicator& comm) {
    comm.barrier({.timeout = testing::kLong});
    // Rank 0 waits for a message that rank 2 never sends. Then every rank waits for its neighbour.
    if (comm.rank() == 0) comm.recv(torch::zeros({5}), 2, {.what = "a row"}).wait();
    EXPECT_THROW(
        comm.recv(torch::zeros({1}), (comm.rank() + 1) % 3, {.timeout = std::chrono::seconds(30)}).wait(),
        Error);
  });
  for (const char* part : {"recv of a row", "worker/2"})
    EXPECT_NE(errors[0].find(part), std::string::npos) << errors[0];
  EXPECT_EQ(errors[0].find("worker/1"), std::string::npos) << errors[0];
}

// Sparse tensors have no contiguous memory, so LibTorch throws.
TEST_P(ConformanceOfTwo, an_exception_that_is_not_ours_ends_the_operation_for_all) {
  const auto begin = std::chrono::steady_clock::now();
  const auto make = testing::make_transports(GetParam(), 3, std::chrono::seconds(60));
  const auto make_failing = [&](int rank) {
    const auto fail_on_rank_1 = [rank] {
      if (rank == 1) throw std::runtime_error("no more memory\nat all");
    };
    return std::make_unique<Collectives>(
        std::make_unique<testing::PlainTransport>(make(rank), fail_on_rank_1), std::chrono::seconds(60));
  };
  const auto errors = errors_of_ranks(3, make_failing, [&](Communicator& comm) {
    const torch::Tensor ones = torch::ones({10});
    const Options options{.what = "gradients", .step = 7};
    try {
      comm.all_reduce(ones, ReduceOp::Sum, options).wait();
    } catch (const Error&) {
      throw;
    } catch (const std::exception&) {
      comm.all_reduce(ones, ReduceOp::Sum).wait();
    }
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  for (const std::string& error : errors)
    EXPECT_EQ(error, "all_reduce of gradients at step 7 failed on rank 1: no more memory");
}

TEST_P(ConformanceOfTwo, names_two_ranks_that_allocate_different_sizes) {
  const auto errors = errors_of_ranks(GetParam(), 3, std::chrono::seconds(60), [](Communicator& comm) {
    comm.shared()->allocate(comm.rank() == 1 ? 2000 : 1000, torch::kFloat);
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error, errors[0]);
    for (const char* part : {"worker/1", "8000", "4000"})
      EXPECT_NE(error.find(part), std::string::npos) << error;
  }
}

size_t shared_mappings() {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/memfd:tutti") != std::string::npos) ++count;
  }
  return count;
}

TEST(ConformanceOfShm, a_shared_vector_is_freed_with_its_last_tensor) {
  const int world = 3;
  std::barrier all(world);
  with_ranks("shm", world, [&](Communicator& comm) {
    comm.barrier();
    all.arrive_and_wait();
    const size_t before = shared_mappings();
    all.arrive_and_wait();
    torch::Tensor part = comm.shared()->allocate(1000, torch::kFloat).narrow(0, 10, 10);
    std::vector<torch::Tensor> everyones = comm.shared()->everyones(part);
    all.arrive_and_wait();
    EXPECT_EQ(shared_mappings(), before + world * world);
    all.arrive_and_wait();
    part.fill_(comm.rank());
    part.reset();
    comm.shared()->sync();
    // The vectors of the other ranks are still accessible.
    EXPECT_EQ(everyones[1][3].item<float>(), 1);
    comm.shared()->sync();
    everyones.clear();
    all.arrive_and_wait();
    EXPECT_EQ(shared_mappings(), before);
    all.arrive_and_wait();
    // A vector allocated later is not mistaken for the freed one.
    const torch::Tensor next = comm.shared()->allocate(1000, torch::kFloat);
    next.fill_(1);
    comm.all_reduce(next, ReduceOp::Sum).wait();
    EXPECT_EQ(next[999].item<float>(), world);
  });
}

TEST_P(ConformanceOfTwo, finds_a_message_where_none_was_expected) {
  const auto errors = errors_of_ranks(GetParam(), 2, std::chrono::seconds(60), [](Communicator& comm) {
    const int64_t to_other = comm.rank() == 0 ? 3 : 0;
    const std::vector<torch::Tensor> inputs = {torch::zeros({0}), torch::zeros({to_other})};
    std::vector<torch::Tensor> outputs(2, torch::zeros({0}));
    comm.all_to_all_uneven(outputs, comm.rank() == 0 ? inputs : outputs).wait();
    comm.barrier();
  });
  EXPECT_EQ(errors[0], errors[1]);
  for (const char* part :
       {"all_to_all_uneven failed: worker/1", "expects 0 bytes from worker/0", "which sends 12"})
    EXPECT_NE(errors[0].find(part), std::string::npos) << errors[0];
}

TEST_P(ConformanceOfTwo, reduces_shared_vectors_where_they_lie) {
  for (const int world : {1, 2, 3, 8}) {
    with_ranks(GetParam(), world, [&](Communicator& comm) {
      ASSERT_NE(comm.shared(), nullptr);
      const torch::Tensor vector = comm.shared()->allocate(100003, torch::kFloat);
      EXPECT_TRUE(torch::equal(vector, torch::zeros_like(vector)));
      const torch::Tensor part = vector.narrow(0, 1, 100001);
      part.fill_(comm.rank() + 1);
      comm.all_reduce(part, ReduceOp::Average).wait();
      EXPECT_TRUE(torch::allclose(part, torch::full_like(part, (world + 1) / 2.0)));
      EXPECT_EQ(vector[0].item<float>(), 0);
      comm.shared()->sync();
      vector.fill_(comm.rank());
      comm.shared()->sync();
      const auto all = comm.shared()->everyones(part);
      for (int r = 0; r < world; ++r)
        EXPECT_TRUE(torch::equal(all[static_cast<size_t>(r)], torch::full_like(part, r)));
      comm.shared()->sync();
      EXPECT_THROW(comm.shared()->everyones(torch::zeros({3})), Error);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, ConformanceOfTwo, ::testing::Values("inproc", "shm"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tutti::comm::conformance_test

// Tests the code that moves tensors between GPUs, with Gloo and CPU tensors instead.
#include "tutti/comm/nccl/c10d_device.h"

#include <gmock/gmock.h>

#include "tutti/base/test_errors.h"
#include "tutti/comm/nccl/test_device.h"
#include "tutti/comm/test_conformance.h"
#include "tutti/transport/test_network.h"

namespace tutti::comm::c10d_device_test {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::with_device::errors_of_ranks;
using testing::with_device::with_ranks;

constexpr milliseconds kLong{60000};

class DeviceWorlds : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Device, DeviceWorlds, ::testing::Values(1, 2, 3, 4, 8));

TEST_P(DeviceWorlds, do_what_every_backend_does) {
  with_ranks("device", GetParam(), [](Communicator& comm) {
    EXPECT_EQ(comm.name(), "device+plain");
    EXPECT_TRUE(comm.on_device(torch::zeros({1})));
    check_conformance(comm);
  });
}

TEST_P(DeviceWorlds, give_the_bits_of_threads) {
  const int world = GetParam();
  for (const auto type : {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf}) {
    for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average, ReduceOp::Product}) {
      std::vector<torch::Tensor> inputs;
      for (int r = 0; r < world; ++r) inputs.push_back(torch::randn({70001}).mul_(1 + r).to(type));
      std::vector<torch::Tensor> expected(inputs.size());
      const auto sum_into = [&](std::vector<torch::Tensor>& sums) {
        return [&](Communicator& comm) {
          const auto r = static_cast<size_t>(comm.rank());
          sums[r] = inputs[r].clone();
          comm.all_reduce(sums[r], op).wait();
        };
      };
      with_ranks("inproc", world, sum_into(expected));
      std::vector<torch::Tensor> sums(inputs.size());
      with_ranks("device", world, sum_into(sums));
      for (size_t r = 0; r < sums.size(); ++r)
        EXPECT_TRUE(torch::equal(sums[r], expected[r])) << c10::toString(type) << ", rank " << r;
    }
  }
}

TEST(Device, moves_64_megabytes) { with_ranks("device", 2, check_large); }

// The ranks also share memory, which is then used only for tensors that are not on the device.
TEST(Device, goes_before_shared_memory) {
  const auto board = std::make_shared<LocalRendezvous>();
  const auto make = testing::make_transports("inproc", 2, kLong);
  const auto errors = testing::errors_of_ranks(
      2,
      [&](int rank) {
        return std::make_unique<Collectives>(make(rank), kLong, nullptr,
                                             testing::device_over_gloo(board, rank, 2, kLong));
      },
      check_conformance);
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// Rank 2 is busy while the others wait on the device.
TEST(Device, names_the_rank_that_is_late) {
  const auto errors = errors_of_ranks("device", 3, milliseconds(500), [](Communicator& comm) {
    comm.barrier({.timeout = kLong, .what = "the start"}).wait();
    if (comm.rank() == 2) {
      EXPECT_THROW(comm.recv(torch::zeros({1}), 0, {.timeout = std::chrono::seconds(30)}).wait(), Error);
      return;
    }
    comm.all_reduce(torch::zeros({100}), ReduceOp::Sum, {.what = "gradients", .step = 118}).wait();
  });
  EXPECT_EQ(errors[0], errors[1]);
  for (const char* part : {"all_reduce of gradients", "step 118", "worker/2", "for 0.5 s"})
    EXPECT_THAT(errors[0], HasSubstr(part));
}

// Rank 0 fails in the transport while rank 1 waits for it on the device. Rank 1 learns of the failure before
// its own deadline.
TEST(Device, a_failure_of_the_transport_ends_waits_on_the_device) {
  const auto errors = errors_of_ranks("device", 2, kLong, [](Communicator& comm) {
    if (comm.rank() == 0) {
      comm.recv(torch::zeros({1}), 1, {.timeout = milliseconds(200), .what = "a row"}).wait();
    } else {
      comm.all_reduce(torch::zeros({100}), ReduceOp::Sum).wait();
    }
  });
  EXPECT_THAT(errors[0], HasSubstr("recv of a row"));
  EXPECT_THAT(errors[1], HasSubstr("recv of a row"));
}

TEST(Device, says_why_a_rank_gave_up_and_stays_broken) {
  const auto errors = errors_of_ranks("device", 3, kLong, [](Communicator& comm) {
    if (comm.rank() == 1) comm.abandon("worker/1 gave up: the data ended");
    EXPECT_THROW(comm.all_reduce(torch::zeros({100}), ReduceOp::Sum).wait(), Error);
    comm.all_reduce(torch::zeros({100}), ReduceOp::Sum).wait();
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "worker/1 gave up: the data ended");
}

// Two processes with a device each. After connecting, the other process waits for no operation.
class TwoProcesses {
 public:
  static std::unique_ptr<Communicator> join(int rank, uint16_t port) {
    const auto board = rank == 0 ? testing::serve_board(port).board : testing::find_board(port);
    auto transport = tcp_transport(with_prefix(board, "tcp/"), {.rank = rank, .world = 2});
    std::unique_ptr<Communicator> comm = std::make_unique<Collectives>(
        std::move(transport), kLong, nullptr,
        testing::device_over_gloo(with_prefix(board, "device/"), rank, 2, kLong));
    comm->barrier().wait();
    return comm;
  }

  std::unique_ptr<Communicator> join() { return join(0, port_); }
  const testing::Child& other() const { return other_; }

 private:
  uint16_t port_ = testing::serve_board().port;
  testing::Child other_{[port = port_] {
    const auto comm = join(1, port);
    while (true) ::pause();
  }};
};

TEST(Device, a_process_that_is_killed_ends_the_wait) {
  TwoProcesses two;
  const auto comm = two.join();
  two.other().kill();
  expect_error(ErrorKind::PeerLost, HasSubstr("all_reduce failed: "),
               [&] { comm->all_reduce(torch::zeros({100}), ReduceOp::Sum).wait(); });
}

TEST(Device, a_process_that_is_stopped_is_named_when_the_time_is_over) {
  TwoProcesses two;
  const auto comm = two.join();
  two.other().stop();
  expect_error(
      ErrorKind::Timeout,
      AllOf(HasSubstr("all_reduce at step 118 failed: "), HasSubstr("nothing from worker/1 for 0.5 s")), [&] {
        comm->all_reduce(torch::zeros({100}), ReduceOp::Sum, {.timeout = milliseconds(500), .step = 118})
            .wait();
      });
}

}  // namespace
}  // namespace tutti::comm::c10d_device_test

#include "tutti/comm/nccl/choice.h"

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include <gmock/gmock.h>

#include "tutti/base/error.h"
#include "tutti/comm/inproc/inproc.h"

namespace tutti::comm::choice_test {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

TEST(ChoiceOfNccl, is_made_where_every_rank_has_a_gpu_of_its_own) {
  EXPECT_EQ(why_not_nccl({{"worker/0", "a", "0000:01:00"},
                          {"worker/1", "a", "0000:02:00"},
                          {"worker/2", "b", "0000:01:00"}}),
            "");
}

TEST(ChoiceOfNccl, says_who_has_no_gpu_or_not_for_itself) {
  EXPECT_EQ(why_not_nccl({{"worker/0", "a", "0000:01:00"}, {"worker/1", "b", device_word(torch::kCPU)}}),
            "worker/1 has no GPU");
  EXPECT_EQ(why_not_nccl({{"worker/0", "a", "0000:01:00"},
                          {"worker/1", "b", "0000:01:00"},
                          {"worker/2", "a", "0000:01:00"}}),
            "worker/0 and worker/2 share a GPU");
}

// A device that moves tensors as threads do, and then does something else to what it has received.
class OtherDevice final : public OnDevice {
 public:
  using Spoil = std::function<void(std::span<const torch::Tensor> received)>;
  OtherDevice(std::unique_ptr<Transport> inner, Spoil spoil)
      : inner_(std::move(inner)), spoil_(std::move(spoil)) {}
  std::string name() const override { return "other"; }
  int rank() const override { return inner_->rank(); }
  int world() const override { return inner_->world(); }
  bool takes(const torch::Tensor&) const override { return true; }
  void exchange_tensors(std::span<const torch::Tensor> sends, std::span<const torch::Tensor> recvs,
                        const Operation& operation) override {
    inner_->exchange_tensors(sends, recvs, operation);
    spoil_(recvs);
  }
  void abandon(const std::string& text) override { inner_->abandon(text); }

 private:
  const std::unique_ptr<Transport> inner_;
  const Spoil spoil_;
};

void change_nothing(std::span<const torch::Tensor>) {}

// Tries a device on each of several ranks; `spoil` is what rank 1 does. Expects the same answer everywhere,
// and returns it; "" if all have the device.
std::string why_not(
    int world, const OtherDevice::Spoil& spoil, const std::function<void(int rank)>& before = [](int) {}) {
  const auto table = local_rendezvous();
  auto transports = inproc_transports(world, milliseconds(60000));
  std::vector<TriedDevice> tried(static_cast<size_t>(world));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto make = [&] {
        before(rank);
        return std::make_unique<OtherDevice>(std::move(transports[static_cast<size_t>(rank)]),
                                             rank == 1 ? spoil : change_nothing);
      };
      tried[static_cast<size_t>(rank)] =
          try_device(make, torch::kCPU, *table, {.rank = rank, .world = world}, milliseconds(60000));
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const TriedDevice& one : tried) {
    EXPECT_EQ(one.why_not, tried[0].why_not);
    EXPECT_EQ(one.carrier == nullptr, !one.why_not.empty());
  }
  return tried[0].why_not;
}

TEST(TriedDevice, is_used_if_its_sums_have_the_bits_of_the_host) {
  for (const int world : {2, 3, 4, 8}) EXPECT_EQ(why_not(world, change_nothing), "") << world;
}

// The last bit of one number.
TEST(TriedDevice, is_not_used_by_any_rank_if_one_bit_is_wrong_on_one_of_them) {
  const auto flip = [](std::span<const torch::Tensor> received) {
    for (const torch::Tensor& tensor : received) {
      if (tensor.defined() && tensor.numel() > 0) *static_cast<uint32_t*>(tensor.data_ptr()) ^= 1U;
    }
  };
  EXPECT_THAT(why_not(3, flip), HasSubstr("it added wrongly"));
}

TEST(TriedDevice, is_not_used_if_it_fails_while_it_adds) {
  const auto throws = [](std::span<const torch::Tensor>) { fail(ErrorKind::PeerLost, "the link is down"); };
  EXPECT_THAT(why_not(2, throws), HasSubstr("the link is down"));
}

TEST(TriedDevice, is_not_used_if_a_rank_cannot_make_it) {
  const auto cannot = [](int rank) {
    if (rank == 1) throw std::runtime_error("no driver");
  };
  // The others would wait for it.
  const auto abandoned = [&](int rank) {
    cannot(rank);
    fail(ErrorKind::PeerLost, "rank 1 is gone");
  };
  EXPECT_THAT(why_not(2, change_nothing, abandoned), HasSubstr("rank 0: rank 1 is gone"));
}

}  // namespace
}  // namespace tutti::comm::choice_test

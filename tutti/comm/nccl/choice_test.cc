#include "tutti/comm/nccl/choice.h"

#include <functional>
#include <latch>
#include <thread>

#include <gmock/gmock.h>

#include "tutti/base/error.h"
#include "tutti/comm/flat.h"
#include "tutti/comm/test_ranks.h"

namespace tutti::comm::choice_test {
namespace {

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

// Moves tensors as the devices of a rank would, in the way that the test says: with `exchange`, which makes
// the right exchange, and with the values received from rank 0.
using Way = std::function<void(const std::function<void()>& exchange, torch::Tensor received)>;
class OtherWay final : public OnDevice {
 public:
  OtherWay(std::unique_ptr<Transport> inner, Way way)
      : OnDevice(torch::kCPU), inner_(std::move(inner)), way_(std::move(way)) {}
  std::string name() const override { return "other"; }
  bool takes(const torch::Tensor&) const override { return true; }
  int rank() const override { return inner_->rank(); }
  int world() const override { return inner_->world(); }
  void exchange_arrays(std::span<const Array> sends, std::span<const Array> recvs,
                       const Operation& operation) override {
    way_([&] { inner_->exchange_arrays(sends, recvs, operation); }, tensor_of(recvs[0], torch::kCPU));
  }
  void abandon(const std::string& text) override { inner_->abandon(text); }

 private:
  const std::unique_ptr<Transport> inner_;
  const Way way_;
};

struct Found {
  bool used = false;
  std::string failure;
};

constexpr int kWorld = 3;
constexpr std::chrono::milliseconds kLong{60000};

// Runs the check on all ranks. way(rank) may throw, as for a rank whose devices cannot connect.
std::vector<Found> check_on_ranks(const std::function<Way(int rank)>& way,
                                  std::chrono::milliseconds check_timeout = kLong) {
  const auto hosts = testing::make_transports("plain", kWorld, kLong);
  const auto others = testing::make_transports("plain", kWorld, kLong);
  const auto board = std::make_shared<LocalRendezvous>();
  std::vector<Found> found(kWorld);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kWorld; ++rank)
    ranks.emplace_back([&, rank] {
      const auto transport = hosts(rank);
      const CheckedDevice checked =
          check_on_device([&] { return std::make_unique<OtherWay>(others(rank), way(rank)); }, torch::kCPU,
                          *transport, *board, {"worker/0", "worker/1", "worker/2"}, kLong, check_timeout);
      found[static_cast<size_t>(rank)] = {checked.on_device != nullptr, checked.failure};
    });
  for (std::thread& rank : ranks) rank.join();
  return found;
}

Way right_way(int) {
  return [](const auto& exchange, const torch::Tensor&) { exchange(); };
}

TEST(CheckOfNccl, lets_it_be_used_if_it_gives_the_sum_of_the_host) {
  for (const Found& found : check_on_ranks(right_way)) {
    EXPECT_TRUE(found.used);
    EXPECT_EQ(found.failure, "");
  }
}

TEST(CheckOfNccl, lets_no_rank_use_it_if_one_gets_another_sum) {
  const std::vector<Found> all = check_on_ranks([](int rank) -> Way {
    return [rank](const auto& exchange, torch::Tensor received) {
      exchange();
      if (rank == 1) received.mul_(1.001);
    };
  });
  for (const Found& found : all) {
    EXPECT_FALSE(found.used);
    EXPECT_THAT(found.failure, ::testing::ContainsRegex("worker/[0-2]: its sum differs"));
    EXPECT_EQ(found.failure, all[0].failure);
  }
}

// The other ranks wait for it in vain.
TEST(CheckOfNccl, lets_no_rank_use_it_if_one_cannot_connect) {
  const auto way = [](int rank) -> Way {
    if (rank == 1) fail(ErrorKind::Unimplemented, "no such device");
    return right_way(rank);
  };
  const std::vector<Found> all = check_on_ranks(way, std::chrono::milliseconds(100));
  for (const Found& found : all) {
    EXPECT_FALSE(found.used);
    EXPECT_THAT(found.failure, ::testing::StartsWith("worker/0: "));
    EXPECT_EQ(found.failure, all[0].failure);
  }
}

TEST(CheckOfNccl, lets_no_rank_use_it_if_one_hangs_until_the_others_have_given_up) {
  std::latch given_up(kWorld - 1);
  const auto way = [&](int rank) -> Way {
    return [&, rank](const auto& exchange, const torch::Tensor&) {
      if (rank == 2) given_up.wait();
      try {
        exchange();
      } catch (const Error&) {
        if (rank != 2) given_up.count_down();
        throw;
      }
    };
  };
  const std::vector<Found> all = check_on_ranks(way, std::chrono::milliseconds(100));
  for (const Found& found : all) {
    EXPECT_FALSE(found.used);
    EXPECT_THAT(found.failure, ::testing::StartsWith("worker/0: "));
    EXPECT_EQ(found.failure, all[0].failure);
  }
}

}  // namespace
}  // namespace tutti::comm::choice_test

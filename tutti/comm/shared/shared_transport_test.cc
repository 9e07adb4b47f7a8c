#include "tutti/transport/shared/shared_transport.h"

#include <latch>
#include <map>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>

#include "tutti/base/test_errors.h"
#include "tutti/transport/inproc/inproc.h"
#include "tutti/transport/test_messages.h"

namespace tutti::comm::shared_transport_test {
namespace {

using testing::kLong;
using testing::operation;

// The shared regions of two ranks that are threads.
class Regions {
 public:
  SharedRegion region(size_t number, size_t size) {
    const std::lock_guard lock(mutex_);
    if (!regions_.contains(number)) {
      auto bytes = std::make_shared<std::vector<std::byte>>(2 * size + 64);
      void* begin = bytes->data();
      size_t room = bytes->size();
      auto* first = static_cast<std::byte*>(std::align(64, 2 * size, begin, room));
      regions_[number] = {{first, first + size}, size, std::move(bytes)};
    }
    return regions_.at(number);
  }

 private:
  std::mutex mutex_;
  std::map<size_t, SharedRegion> regions_;
};

class FakeMemory final : public SharedMemory {
 public:
  FakeMemory(std::shared_ptr<Regions> regions, int rank, std::function<bool()> other_has_ended)
      : regions_(std::move(regions)), rank_(rank), other_has_ended_(std::move(other_has_ended)) {}
  std::string name() const override { return "fake"; }
  int rank() const override { return rank_; }
  int world() const override { return 2; }
  const std::string& who(int) const override { return who_; }
  SharedRegion allocate(size_t size, const Operation&, const std::function<void()>&) override {
    return regions_->region(next_++, size);
  }
  bool has_ended(int) override { return other_has_ended_(); }
  bool is_stopped(int) override { return false; }
  std::unique_ptr<SharedMemory> split(const std::vector<int>&, const std::string&) override {
    return nullptr;
  }

 private:
  const std::shared_ptr<Regions> regions_;
  const int rank_;
  const std::function<bool()> other_has_ended_;
  const std::string who_ = "somebody";
  size_t next_ = 0;
};

// Rank 1 reaches the last sync point after rank 0 has found it late, and has left by the time rank 0 checks
// whether it is still there.
void last_meeting(const std::function<void(Transport&)>& of_first,
                  const std::function<void(Transport&)>& of_second) {
  const auto regions = std::make_shared<Regions>();
  std::latch asked(1);
  std::latch left(1);
  std::once_flag once;
  SharedTransport first(std::make_unique<FakeMemory>(regions, 0,
                                                     [&] {
                                                       std::call_once(once, [&] { asked.count_down(); });
                                                       left.wait();
                                                       return true;
                                                     }),
                        kLong);
  std::thread other([&] {
    {
      SharedTransport second(std::make_unique<FakeMemory>(regions, 1, [] { return false; }), kLong);
      asked.wait();
      of_second(second);
    }
    left.count_down();
  });
  EXPECT_NO_THROW(of_first(first));
  other.join();
}

TEST(SharedTransport, a_rank_that_comes_and_then_leaves_is_not_lost) {
  const auto meet = [](Transport& transport) { testing::meet(transport, operation("barrier")); };
  last_meeting(meet, meet);
}

TEST(SharedTransport, a_rank_that_sends_and_then_leaves_is_not_lost) {
  last_meeting(
      [](Transport& transport) {
        std::byte byte{};
        transport.recv({&byte, 1}, 1, operation("recv"));
        EXPECT_EQ(byte, std::byte{7});
      },
      [](Transport& transport) {
        const std::byte byte{7};
        transport.send({&byte, 1}, 0, operation("send"));
      });
}

TEST(SharedTransport, a_rank_that_comes_after_the_others_have_given_up_fails_with_them) {
  const auto ranks = inproc_transports(2, kLong);
  const std::byte byte{7};
  ranks[0]->send({&byte, 1}, 1, operation("send"));
  const std::string text = error_of(
      ErrorKind::Timeout, [&] { ranks[0]->sync(operation("barrier", std::chrono::milliseconds(20))); });
  expect_error(ErrorKind::Timeout, text, [&] { ranks[1]->sync(operation("barrier")); });
  std::byte received{};
  expect_error(ErrorKind::Timeout, text, [&] { ranks[1]->recv({&received, 1}, 0, operation("recv")); });
}

}  // namespace
}  // namespace tutti::comm::shared_transport_test

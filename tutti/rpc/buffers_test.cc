#include "tutti/rpc/buffers.h"

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/test_errors.h"
#include "tutti/rpc/test_service.h"

namespace tutti::rpc::buffers_test {
namespace {

using testing::HasSubstr;

TEST(Buffers, refuse_a_request_that_can_never_fit) {
  Buffers buffers(kMiB);
  expect_error(ErrorKind::Overloaded, HasSubstr("1.0 MiB"), [&] { buffers.allocate(kMiB + 1); });
  expect_error(ErrorKind::Overloaded, HasSubstr("larger than the limit of 1.0 MiB for all"),
               [&] { buffers.allocate(size_t{1} << 60); });
  EXPECT_NE(buffers.allocate(kMiB), nullptr);
}

TEST(Buffers, reuse_returned_blocks) {
  Buffers buffers(4 * kMiB);
  std::byte* const first = buffers.allocate(kMiB).get();
  EXPECT_EQ(buffers.allocate(kMiB).get(), first);
  EXPECT_EQ(buffers.allocate(kMiB - 1).get(), first);
}

TEST(Buffers, free_idle_blocks_when_room_is_needed) {
  Buffers buffers(4 * kMiB);
  buffers.allocate(3 * kMiB);
  const auto one = buffers.allocate(kMiB);
  EXPECT_NE(buffers.allocate(3 * kMiB), nullptr);
  const auto two = buffers.allocate(kMiB);
  const auto three = buffers.allocate(2 * kMiB);
  expect_error(ErrorKind::Overloaded, HasSubstr("no room"), [&] { buffers.allocate(1); });
}

TEST(Buffers, give_returned_memory_to_those_who_wait) {
  Buffers buffers(kMiB);
  auto all = buffers.allocate(kMiB);
  std::atomic<int> asked = 0;
  std::shared_ptr<std::byte> got;
  std::thread waiting([&] {
    got = buffers.allocate(kMiB, [&] {
      ++asked;
      return true;
    });
  });
  while (asked == 0) std::this_thread::yield();
  all.reset();
  waiting.join();
  EXPECT_NE(got, nullptr);
}

TEST(Buffers, return_null_to_a_caller_that_stops_waiting) {
  Buffers buffers(kMiB);
  const auto all = buffers.allocate(kMiB);
  EXPECT_EQ(buffers.allocate(1, [] { return false; }), nullptr);
}

TEST(Buffers, may_outlive_their_origin) {
  std::shared_ptr<std::byte> memory;
  {
    Buffers buffers(kMiB);
    memory = buffers.allocate(kMiB);
  }
  std::memset(memory.get(), 1, kMiB);
}

TEST(Buffers, many_threads_stay_within_the_budget) {
  Buffers buffers(4 * kMiB);
  std::atomic<size_t> out = 0;
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < 200; ++i) {
        const size_t size = (t * 37 + i * 101) % (2 * kMiB) + 1;
        const auto memory = buffers.allocate(size, [] { return true; });
        EXPECT_LE(out += size, 4 * kMiB);
        memory.get()[size - 1] = std::byte{1};
        out -= size;
      }
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tutti::rpc::buffers_test

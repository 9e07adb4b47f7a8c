#include "tutti/transport/executor.h"

#include <latch>
#include <memory>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

namespace tutti::comm::executor_test {
namespace {

TEST(Executor, carries_operations_out_in_their_order) {
  Executor executor;
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) executor.run([&order, i] { order.push_back(i); });
  executor.drain();
  ASSERT_EQ(order.size(), 100U);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

// A checkpoint's operation holds a copy of the model, and waits for the operation before.
TEST(Executor, keeps_nothing_of_an_operation_that_has_ended) {
  Executor executor;
  std::vector<std::weak_ptr<int>> held;
  Work last;
  for (int i = 0; i < 10; ++i) {
    auto large = std::make_shared<int>(i);
    held.push_back(large);
    last = executor.run([large = std::move(large), before = last] { before.wait(); });
  }
  last.wait();
  for (const std::weak_ptr<int>& each : held) EXPECT_TRUE(each.expired());
  auto large = std::make_shared<int>(0);
  const std::weak_ptr<int> of_failure = large;
  const Work failed = executor.run([large = std::move(large)] { throw std::runtime_error("no"); });
  EXPECT_THROW(failed.wait(), std::runtime_error);
  EXPECT_TRUE(of_failure.expired());
}

TEST(Executor, knows_functions_that_its_thread_calls_at_the_end_of_an_operation) {
  Executor executor;
  std::latch given(1);
  std::vector<bool> in_callback(3);
  const Work work = executor.run([&] {
    given.wait();
    in_callback[0] = Executor::is_in_callback();
  });
  work.then([&] { in_callback[1] = Executor::is_in_callback(); });
  given.count_down();
  executor.drain();
  work.then([&] { in_callback[2] = Executor::is_in_callback(); });
  EXPECT_EQ(in_callback, std::vector({false, true, false}));
}

}  // namespace
}  // namespace tutti::comm::executor_test

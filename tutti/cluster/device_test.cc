#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/test_errors.h"
#include "tutti/cluster/device_spec.h"

namespace tutti {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Device, auto_takes_a_gpu_in_turn_and_else_the_cpu) {
  EXPECT_EQ(choose_device("auto", 0, 0).str(), "cpu");
  EXPECT_EQ(choose_device("auto", 3, 0).str(), "cpu");
  EXPECT_EQ(choose_device("auto", 3, 8).str(), "cuda:3");
  EXPECT_EQ(choose_device("auto", 5, 4).str(), "cuda:1");
  EXPECT_EQ(choose_device("auto", 5, 1).str(), "cuda:0");
}

TEST(Device, is_what_was_asked_for) {
  for (const char* text : {"cpu", "/cpu:0", "/cpu", "/CPU:0", "/device:CPU:0", "cpu:0"}) {
    EXPECT_EQ(choose_device(text, 3, 8).str(), "cpu") << text;
  }
  for (const char* text : {"cuda:2", "gpu:2", "/gpu:2", "/GPU:2", "/device:GPU:2", "/device:cuda:2"}) {
    EXPECT_EQ(choose_device(text, 3, 8).str(), "cuda:2") << text;
  }
  for (const char* text : {"cuda", "gpu", "/gpu", "/gpu:*", "/device:GPU"}) {
    EXPECT_EQ(choose_device(text, 5, 4).str(), "cuda:1") << text;
  }
}

TEST(Device, a_gpu_that_is_not_there_says_what_to_do) {
  for (const char* text : {"cuda", "cuda:0", "/gpu:0"}) {
    expect_error(
        ErrorKind::InvalidArgument,
        AllOf(HasSubstr("'" + std::string(text) + "'"), HasSubstr("--device cpu"), HasSubstr("tutti doctor")),
        [&] { choose_device(text, 0, 0); });
  }
  expect_error(ErrorKind::InvalidArgument, HasSubstr("there are 2 GPUs"),
               [] { choose_device("cuda:2", 0, 2); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("there is 1 GPU "),
               [] { choose_device("/gpu:1", 0, 1); });
}

TEST(Device, other_names_are_refused) {
  expect_error(ErrorKind::InvalidArgument, HasSubstr("did you mean 'cuda'?"),
               [] { choose_device("cdua", 0, 1); });
  for (const char* text : {"", "CPU", "cuda:", "cuda:x", "cuda:-1", "cuda:1:2", "cpu:1", "/cpu:1", "tpu",
                           "/device:TPU:0", "/", "/gpux:0", "/job:worker/gpu:0", "/task:1", "Auto"}) {
    expect_error(ErrorKind::InvalidArgument, HasSubstr("'"), [&] { choose_device(text, 0, 4); });
  }
}

}  // namespace
}  // namespace tutti

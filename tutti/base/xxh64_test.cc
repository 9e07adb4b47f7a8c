#include "tutti/base/xxh64.h"

#include <gtest/gtest.h>

namespace tutti::xxh64_test {
namespace {

// The values are those of LLVM's tests and of the empty text. Saved ids of categories depend on them.
TEST(Xxh64, gives_the_published_values) {
  EXPECT_EQ(xxh64(""), 0xEF46DB3751D8E999);
  EXPECT_EQ(xxh64("foo"), 0x33bf00a859c4ba3f);
  EXPECT_EQ(xxh64("bar"), 0x48a37c90ad27a659);
  EXPECT_EQ(xxh64("0123456789abcdefghijklmnopqrstuvwxyz"), 0x69196c1b3af0bff9);
}

}  // namespace
}  // namespace tutti::xxh64_test

#include <gtest/gtest.h>

#include "tutti/base/hashes.h"

namespace tutti::xxhash_test {
namespace {

// The values are from LLVM's tests and for the empty text. Saved ids of categories depend on them.
TEST(Xxh64, gives_the_published_values) {
  EXPECT_EQ(xxh64(""), 0xEF46DB3751D8E999);
  EXPECT_EQ(xxh64("foo"), 0x33bf00a859c4ba3f);
  EXPECT_EQ(xxh64("bar"), 0x48a37c90ad27a659);
  EXPECT_EQ(xxh64("0123456789abcdefghijklmnopqrstuvwxyz"), 0x69196c1b3af0bff9);
}

// The specification of the hash gives the value of the empty text.
TEST(Xxh128, gives_the_published_values) {
  EXPECT_EQ(xxh128(""), (XxhBits128{0x99aa06d3014798d8, 0x6001c324468d497f}));
  EXPECT_EQ(xxh128("foo"), (XxhBits128{0x79aef92e83454121, 0xab6e5f64077e7d8a}));
  EXPECT_NE(xxh128("foo"), xxh128(std::string_view("foo\0", 4)));
}

}  // namespace
}  // namespace tutti::xxhash_test

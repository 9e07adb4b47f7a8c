#include "tutti/base/xxh64.h"

#include <string>

#include <gtest/gtest.h>

namespace tutti {
namespace {

// The text on which xxHash checks itself (tests/sanity_test.c): the highest bytes of a chain of products.
std::string sanity_text(size_t length) {
  std::string text;
  uint64_t byte = 2654435761;
  for (size_t i = 0; i < length; ++i) {
    text += static_cast<char>(byte >> 56);
    byte *= 11400714785074694797ULL;
  }
  return text;
}

TEST(Xxh64, gives_the_values_with_which_xxhash_checks_itself) {
  EXPECT_EQ(xxh64(sanity_text(0)), 0xEF46DB3751D8E999);
  EXPECT_EQ(xxh64(sanity_text(1)), 0xE934A84ADB052768);
  EXPECT_EQ(xxh64(sanity_text(4)), 0x9136A0DCA57457EE);
  EXPECT_EQ(xxh64(sanity_text(14)), 0x8282DCC4994E35C8);
  EXPECT_EQ(xxh64(sanity_text(222)), 0xB641AE8CB691C174);
}

// From the tests of LLVM's own implementation.
TEST(Xxh64, gives_the_values_that_others_publish) {
  EXPECT_EQ(xxh64("foo"), 0x33bf00a859c4ba3f);
  EXPECT_EQ(xxh64("bar"), 0x48a37c90ad27a659);
  EXPECT_EQ(xxh64("0123456789abcdefghijklmnopqrstuvwxyz"), 0x69196c1b3af0bff9);
}

TEST(Xxh64, depends_on_every_byte) {
  for (size_t length = 1; length < 100; ++length) {
    const std::string text = sanity_text(length);
    const uint64_t hash = xxh64(text);
    for (size_t i = 0; i < length; ++i) {
      std::string other = text;
      other[i] = static_cast<char>(other[i] ^ 1);
      EXPECT_NE(xxh64(other), hash) << length << " " << i;
    }
    EXPECT_NE(xxh64(text + '\0'), hash);
  }
}

}  // namespace
}  // namespace tutti

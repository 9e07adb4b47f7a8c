#include "tutti/base/hashes.h"

#include <algorithm>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/base/file.h"

namespace tutti::hashes_test {
namespace {

using Code = uint32_t (*)(std::span<const std::byte>, uint32_t);

class Crc32c : public testing::TestWithParam<Code> {};

std::vector<std::byte> ascending(size_t count) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i);
  return bytes;
}

// The values are from RFC 3720, B.4, and the check value from the catalogue of CRCs.
TEST_P(Crc32c, gives_the_published_values) {
  EXPECT_EQ(GetParam()(as_bytes("123456789"), 0), 0xe3069283);
  EXPECT_EQ(GetParam()(std::vector<std::byte>(32, std::byte{0}), 0), 0x8a9136aa);
  EXPECT_EQ(GetParam()(std::vector<std::byte>(32, std::byte{0xff}), 0), 0x62a8ab43);
  EXPECT_EQ(GetParam()(ascending(32), 0), 0x46dd794e);
  std::vector<std::byte> descending = ascending(32);
  std::reverse(descending.begin(), descending.end());
  EXPECT_EQ(GetParam()(descending, 0), 0x113fdb5c);
  EXPECT_EQ(GetParam()({}, 0), 0U);
}

TEST_P(Crc32c, goes_on_where_it_was_cut) {
  const auto bytes = ascending(3500);
  const uint32_t whole = GetParam()(bytes, 0);
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    const std::span all(bytes);
    EXPECT_EQ(GetParam()(all.subspan(cut), GetParam()(all.first(cut), 0)), whole) << cut;
  }
}

// The remainder of the division of polynomials, bit by bit.
uint32_t by_division(std::span<const std::byte> bytes) {
  uint32_t crc = 0xffffffff;
  for (const std::byte byte : bytes) {
    crc ^= static_cast<uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ 0x82f63b78 : crc >> 1;
  }
  return ~crc;
}

TEST_P(Crc32c, is_the_remainder_for_any_size_and_alignment) {
  std::vector<std::byte> bytes(20000);
  std::mt19937 random(1);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  for (const size_t size : {7, 8, 1023, 1024, 3071, 3072, 3073, 3080, 6143, 6144, 9223, 19990}) {
    for (const size_t begin : {0, 1, 7}) {
      const auto part = std::span<const std::byte>(bytes).subspan(begin, size);
      EXPECT_EQ(GetParam()(part, 0), by_division(part)) << size << " from " << begin;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codes, Crc32c, testing::Values(Code{crc32c}, Code{crc32c_portable}));

std::string hash(std::string_view text) {
  Sha256 hash;
  hash.update(as_bytes(text));
  return hash.hex();
}

// The values are from FIPS 180-2, appendix B, and for the empty message.
TEST(Sha256, gives_the_published_values) {
  EXPECT_EQ(hash(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, does_not_depend_on_how_the_bytes_are_cut) {
  const std::string text(300, 'x');
  for (size_t first = 0; first <= 130; ++first) {
    Sha256 pieces;
    pieces.update(as_bytes(text).first(first));
    static_cast<void>(pieces.hex());  // hex() does not finish the hash
    pieces.update(as_bytes(text).subspan(first, 17));
    pieces.update(as_bytes(text).subspan(first + 17));
    EXPECT_EQ(pieces.hex(), hash(text)) << first;
  }
}

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
}  // namespace tutti::hashes_test

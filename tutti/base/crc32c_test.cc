#include <vector>

#include <gtest/gtest.h>

#include "tutti/base/file.h"
#include "tutti/base/hashes.h"

namespace tutti::crc32c_test {
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
  EXPECT_EQ(GetParam()({}, 0), 0U);
}

TEST_P(Crc32c, goes_on_where_it_was_cut) {
  const auto bytes = ascending(200);
  const uint32_t whole = GetParam()(bytes, 0);
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    const std::span all(bytes);
    EXPECT_EQ(GetParam()(all.subspan(cut), GetParam()(all.first(cut), 0)), whole) << cut;
  }
}

INSTANTIATE_TEST_SUITE_P(Codes, Crc32c, testing::Values(Code{crc32c}, Code{crc32c_portable}));

}  // namespace
}  // namespace tutti::crc32c_test

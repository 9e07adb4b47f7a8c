#include <gtest/gtest.h>

#include "tutti/base/file.h"
#include "tutti/base/hashes.h"

namespace tutti::sha256_test {
namespace {

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

}  // namespace
}  // namespace tutti::sha256_test

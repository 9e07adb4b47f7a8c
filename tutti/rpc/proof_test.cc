#include "tutti/rpc/proof.h"

#include <set>

#include <gtest/gtest.h>

namespace tutti::rpc {
namespace {

// RFC 4231, cases 1, 2 and 6 (a key longer than a block).
TEST(Proof, gives_the_published_values) {
  EXPECT_EQ(hmac_sha256(std::string(20, '\x0b'), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hmac_sha256("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hmac_sha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Proof, equal_ones_are_equal) {
  EXPECT_TRUE(equal_proofs("", ""));
  EXPECT_TRUE(equal_proofs("abc", "abc"));
  EXPECT_FALSE(equal_proofs("abc", "abd"));
  EXPECT_FALSE(equal_proofs("abc", "ab"));
  EXPECT_FALSE(equal_proofs("", "a"));
}

TEST(Proof, no_two_nonces_are_the_same) {
  std::set<std::string> all;
  for (int i = 0; i < 1000; ++i) all.insert(make_nonce());
  EXPECT_EQ(all.size(), 1000U);
  for (const std::string& nonce : all) EXPECT_EQ(nonce.size(), kNonceDigits);
}

}  // namespace
}  // namespace tutti::rpc

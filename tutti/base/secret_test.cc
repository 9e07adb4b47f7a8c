#include "tutti/base/secret.h"

#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/test_errors.h"

namespace tutti::secret_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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

TEST(Proof, is_of_no_use_for_anything_else) {
  const Nonces nonces{"1", "2"};
  const std::string proof = prove("secret", Side::Caller, "table", nonces, "hello");
  EXPECT_EQ(proof.size(), kProofSize);
  EXPECT_EQ(proof, prove("secret", Side::Caller, "table", nonces, "hello"));
  const std::set<std::string> all = {proof,
                                     prove("Secret", Side::Caller, "table", nonces, "hello"),
                                     prove("", Side::Caller, "table", nonces, "hello"),
                                     prove("secret", Side::Listener, "table", nonces, "hello"),
                                     prove("secret", Side::Caller, "rpc", nonces, "hello"),
                                     prove("secret", Side::Caller, "table", {"2", "1"}, "hello"),
                                     prove("secret", Side::Caller, "table", {"1", "3"}, "hello"),
                                     prove("secret", Side::Caller, "table", nonces, "hello "),
                                     prove("secret", Side::Caller, "table", nonces)};
  EXPECT_EQ(all.size(), 9U);
}

TEST(Secret, is_required_wherever_others_can_connect) {
  for (const char* host :
       {"", "0.0.0.0", "[::]", "192.168.0.7", "node7", "localhost.example.com", "::ffff:10.0.0.1"}) {
    expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("TUTTI_SECRET"), HasSubstr("--insecure")),
                 [&] { require_secret(host, false, false); });
    EXPECT_NO_THROW(require_secret(host, true, false));
    EXPECT_NO_THROW(require_secret(host, false, true));
  }
  for (const char* host : {"localhost", "127.0.0.1", "127.0.0.2", "::1"})
    EXPECT_NO_THROW(require_secret(host, false, false)) << host;
}

TEST(Secret, bytes_of_unknown_peers_cannot_move_the_cursor) {
  EXPECT_EQ(harmless("no \x1b[2J\x07gone\xff\n", 60), "no ?[2J?gone??");
  EXPECT_EQ(harmless(std::string(100, 'x'), 60), std::string(60, 'x'));
}

}  // namespace
}  // namespace tutti::secret_test

#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tutti::rpc {

inline constexpr size_t kNonceDigits = 32;

// Returns this number of random hexadecimal digits, which are unpredictable and do not repeat.
std::string make_nonce();

// Returns an HMAC-SHA256 (RFC 2104) in hexadecimal digits, which proves knowledge of the key.
std::string hmac_sha256(std::string_view key, std::string_view text);

// Compares in a time that does not depend on the first difference.
bool equal_proofs(std::string_view one, std::string_view other);

}  // namespace tutti::rpc

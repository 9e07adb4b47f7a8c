#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tutti::rpc {

inline constexpr size_t kNonceDigits = 32;

// So many hexadecimal digits that nobody can guess and that do not come again.
std::string make_nonce();

// HMAC-SHA256 (RFC 2104) in hexadecimal digits: shows that one knows the key without telling it.
std::string hmac_sha256(std::string_view key, std::string_view text);

// In a time that does not depend on where they differ.
bool equal_proofs(std::string_view one, std::string_view other);

}  // namespace tutti::rpc

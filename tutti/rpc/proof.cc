#include "tutti/rpc/proof.h"

#include <array>
#include <cerrno>
#include <cstdint>
#include <sys/random.h>

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/sha256.h"
#include "tutti/base/text.h"

namespace tutti::rpc {
namespace {

constexpr size_t kBlock = 64;

std::string sha256(std::string_view first, std::string_view second) {
  Sha256 hash;
  hash.update(as_bytes(first));
  hash.update(as_bytes(second));
  return hash.hex();
}

std::string bytes_of(std::string_view hex) {
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes.push_back(static_cast<char>(digit(hex[i]) * 16 + digit(hex[i + 1])));
  return bytes;
}

// Returns the key, extended to a block with zeros, with every byte xor `pad`.
std::string padded(std::string key, unsigned char pad) {
  key.resize(kBlock);
  for (char& c : key) c = static_cast<char>(static_cast<unsigned char>(c) ^ pad);
  return key;
}

}  // namespace

std::string make_nonce() {
  std::array<unsigned char, kNonceDigits / 2> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    fail_errno(errno, "generating random bytes");
  std::string digits;
  for (const unsigned char byte : bytes) digits += fmt::format("{:02x}", byte);
  return digits;
}

std::string hmac_sha256(std::string_view key, std::string_view text) {
  const std::string one = key.size() > kBlock ? bytes_of(sha256(key, "")) : std::string(key);
  return sha256(padded(one, 0x5c), bytes_of(sha256(padded(one, 0x36), text)));
}

bool equal_proofs(std::string_view one, std::string_view other) {
  if (one.size() != other.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < one.size(); ++i) difference |= static_cast<unsigned char>(one[i] ^ other[i]);
  return difference == 0;
}

}  // namespace tutti::rpc

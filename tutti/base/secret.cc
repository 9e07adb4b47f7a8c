#include "tutti/base/secret.h"

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/base/net.h"
#include "tutti/base/sha256.h"
#include "tutti/base/text.h"

namespace tutti {
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

// The proof names its side, so that no end can be sent its own proof.
std::string prove(std::string_view secret, Side side, std::string_view purpose, const Nonces& nonces,
                  std::string_view says) {
  return hmac_sha256(secret,
                     fmt::format("{} {} {} {} {}", purpose, side == Side::Caller ? "caller" : "listener",
                                 nonces.of_listener, nonces.of_caller, says));
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

void require_secret(const std::string& host, bool has_secret, bool insecure) {
  if (has_secret || insecure || host == "localhost" || is_loopback(host)) return;
  fail(ErrorKind::InvalidArgument,
       "refusing to listen at {} without a secret, since everybody who reaches that could take part in the "
       "job and change its weights. Set the variable TUTTI_SECRET for all tasks of the job, for example to "
       "what `openssl rand -hex 16` prints, or give --insecure if you trust the network",
       host.empty() ? "all addresses of this machine" : host);
}

}  // namespace tutti

#include "tutti/base/secret.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/check.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/net.h"

namespace tutti {

// The proof names its side, so that a proof cannot be sent back to the end that made it.
std::string prove(std::string_view secret, Side side, std::string_view purpose, const Nonces& nonces,
                  std::string_view says) {
  return hmac_sha256(secret,
                     fmt::format("{} {} {} {} {}", purpose, side == Side::Caller ? "caller" : "listener",
                                 nonces.of_listener, nonces.of_caller, says));
}

std::string hmac_sha256(std::string_view key, std::string_view text) {
  std::array<unsigned char, 32> proof{};
  const std::string bytes(text);
  TUTTI_CHECK(HMAC(EVP_sha256(), std::string(key).c_str(), static_cast<int>(key.size()),
                   reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), proof.data(),
                   nullptr) != nullptr,
              "libcrypto's HMAC-SHA256");
  return fmt::format("{:02x}", fmt::join(proof, ""));
}

bool equal_proofs(std::string_view one, std::string_view other) {
  return one.size() == other.size() && CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

std::string harmless(std::string_view bytes, size_t most) {
  std::string text(bytes.substr(0, most));
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

void require_secret(const std::string& host, bool has_secret, bool insecure) {
  if (has_secret || insecure || host == "localhost" || is_loopback(host)) return;
  fail(ErrorKind::InvalidArgument,
       "no task may listen at {} without a secret, since everybody who reaches that could take part in the "
       "job and change its weights. Set the variable TUTTI_SECRET for all tasks of the job, for example to "
       "what `openssl rand -hex 16` prints, or give --insecure if you trust the network",
       host.empty() ? "all addresses of this machine" : host);
}

std::string random_key() {
  std::array<unsigned char, 16> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    fail_errno(errno, "generating random bytes");
  std::string digits;
  for (const unsigned char byte : bytes) digits += fmt::format("{:02x}", byte);
  return digits;
}

}  // namespace tutti

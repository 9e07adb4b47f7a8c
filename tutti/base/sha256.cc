#include "tutti/base/sha256.h"

#include <array>
#include <openssl/evp.h>

#include <fmt/format.h>

#include "tutti/base/check.h"

namespace tutti {
namespace {

EVP_MD_CTX* create() {
  EVP_MD_CTX* const state = EVP_MD_CTX_new();
  TUTTI_CHECK(state != nullptr && EVP_DigestInit_ex(state, EVP_sha256(), nullptr) == 1,
              "libcrypto's SHA-256");
  return state;
}

}  // namespace

Sha256::Sha256() : state_(create()) {}

Sha256::~Sha256() { EVP_MD_CTX_free(state_); }

void Sha256::update(std::span<const std::byte> bytes) {
  TUTTI_CHECK(EVP_DigestUpdate(state_, bytes.data(), bytes.size()) == 1, "libcrypto's SHA-256");
}

std::string Sha256::hex() const {
  const Sha256 ended;  // the state of a hash that has ended cannot be updated
  std::array<unsigned char, 32> hash{};
  TUTTI_CHECK(EVP_MD_CTX_copy_ex(ended.state_, state_) == 1 &&
                  EVP_DigestFinal_ex(ended.state_, hash.data(), nullptr) == 1,
              "libcrypto's SHA-256");
  return fmt::format("{:02x}", fmt::join(hash, ""));
}

}  // namespace tutti

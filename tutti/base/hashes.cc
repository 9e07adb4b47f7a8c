#include "tutti/base/hashes.h"

#include <array>
#include <cstring>
#include <openssl/evp.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/check.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tutti {
namespace {

constexpr uint32_t kReversedPolynomial = 0x82f63b78;

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? kReversedPolynomial : 0);
    table[byte] = value;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = make_table();

#if defined(__x86_64__)
bool has_instruction() { return __builtin_cpu_supports("sse4.2") != 0; }

__attribute__((target("sse4.2"))) uint32_t crc32c_by_instruction(std::span<const std::byte> bytes,
                                                                 uint32_t before) {
  uint64_t crc = ~before;
  while (bytes.size() >= sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), sizeof(word));
    crc = _mm_crc32_u64(crc, word);
    bytes = bytes.subspan(sizeof(word));
  }
  auto tail = static_cast<uint32_t>(crc);
  for (const std::byte byte : bytes) tail = _mm_crc32_u8(tail, static_cast<uint8_t>(byte));
  return ~tail;
}
#else
bool has_instruction() { return false; }

uint32_t crc32c_by_instruction(std::span<const std::byte> bytes, uint32_t before) {
  return crc32c_portable(bytes, before);
}
#endif

EVP_MD_CTX* create() {
  EVP_MD_CTX* const state = EVP_MD_CTX_new();
  TUTTI_CHECK(state != nullptr && EVP_DigestInit_ex(state, EVP_sha256(), nullptr) == 1,
              "libcrypto's SHA-256");
  return state;
}

}  // namespace

uint32_t crc32c_portable(std::span<const std::byte> bytes, uint32_t before) {
  uint32_t crc = ~before;
  for (const std::byte byte : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<uint32_t>(byte)) & 0xff];
  return ~crc;
}

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before) {
  return has_instruction() ? crc32c_by_instruction(bytes, before) : crc32c_portable(bytes, before);
}

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

uint64_t xxh64(std::string_view text) { return XXH64(text.data(), text.size(), 0); }

XxhBits128 xxh128(std::string_view text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return {hash.high64, hash.low64};
}

std::string bytes_of(const XxhBits128& hash) { return {reinterpret_cast<const char*>(&hash), sizeof hash}; }

}  // namespace tutti

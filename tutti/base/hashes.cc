#include "tutti/base/hashes.h"

#include <array>
#include <cstring>
#include <openssl/evp.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/check.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
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
#define TUTTI_WITH_CRC32C __attribute__((target("sse4.2")))
bool has_instruction() { return __builtin_cpu_supports("sse4.2") != 0; }
TUTTI_WITH_CRC32C uint32_t add_word(uint32_t crc, uint64_t word) {
  return static_cast<uint32_t>(_mm_crc32_u64(crc, word));
}
TUTTI_WITH_CRC32C uint32_t add_byte(uint32_t crc, uint8_t byte) { return _mm_crc32_u8(crc, byte); }
#elif defined(__aarch64__)
#define TUTTI_WITH_CRC32C __attribute__((target("+crc")))
bool has_instruction() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
TUTTI_WITH_CRC32C uint32_t add_word(uint32_t crc, uint64_t word) { return __crc32cd(crc, word); }
TUTTI_WITH_CRC32C uint32_t add_byte(uint32_t crc, uint8_t byte) { return __crc32cb(crc, byte); }
#else
#define TUTTI_WITH_CRC32C
bool has_instruction() { return false; }
uint32_t add_word(uint32_t crc, uint64_t) { return crc; }  // is not called
uint32_t add_byte(uint32_t crc, uint8_t) { return crc; }
#endif

// The instruction takes three cycles, but one can begin in every cycle. So three neighbouring blocks of this
// size are computed at a time, each on its own, and joined.
constexpr size_t kBlock = 1024;

// A table for the CRC of bytes that are followed by a block of zeros. A CRC is linear, so it is the sum of
// the entries for the four bytes of the CRC before the block.
using Shift = std::array<std::array<uint32_t, 256>, 4>;

constexpr Shift make_shift() {
  std::array<uint32_t, 32> of_bit{};
  for (size_t bit = 0; bit < of_bit.size(); ++bit) {
    uint32_t crc = uint32_t{1} << bit;
    for (size_t i = 0; i < kBlock; ++i) crc = (crc >> 8) ^ kTable[crc & 0xff];
    of_bit[bit] = crc;
  }
  Shift shift{};
  for (size_t byte = 0; byte < shift.size(); ++byte)
    for (size_t value = 0; value < 256; ++value)
      for (size_t bit = 0; bit < 8; ++bit)
        if ((value >> bit & 1) != 0) shift[byte][value] ^= of_bit[8 * byte + bit];
  return shift;
}

constexpr Shift kShift = make_shift();

uint32_t behind_block(uint32_t crc) {
  return kShift[0][crc & 0xff] ^ kShift[1][crc >> 8 & 0xff] ^ kShift[2][crc >> 16 & 0xff] ^
         kShift[3][crc >> 24];
}

uint64_t word_at(const std::byte* bytes) {
  uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

TUTTI_WITH_CRC32C uint32_t crc32c_by_instruction(std::span<const std::byte> bytes, uint32_t before) {
  uint32_t crc = ~before;
  for (; bytes.size() >= 3 * kBlock; bytes = bytes.subspan(3 * kBlock)) {
    uint32_t second = 0;
    uint32_t third = 0;
    for (const std::byte* at = bytes.data(); at != bytes.data() + kBlock; at += sizeof(uint64_t)) {
      crc = add_word(crc, word_at(at));
      second = add_word(second, word_at(at + kBlock));
      third = add_word(third, word_at(at + 2 * kBlock));
    }
    crc = behind_block(behind_block(crc) ^ second) ^ third;
  }
  for (; bytes.size() >= sizeof(uint64_t); bytes = bytes.subspan(sizeof(uint64_t)))
    crc = add_word(crc, word_at(bytes.data()));
  for (const std::byte byte : bytes) crc = add_byte(crc, static_cast<uint8_t>(byte));
  return ~crc;
}

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

#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

struct evp_md_ctx_st;  // of libcrypto

namespace tutti {

// Returns the CRC-32C (Castagnoli), as used by iSCSI and TensorBoard's event files. Continues from `before`,
// so that crc32c(b, crc32c(a)) is the checksum of a followed by b.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before = 0);

// Like crc32c(), but without the CPU's instruction. Only tests call it directly.
uint32_t crc32c_portable(std::span<const std::byte> bytes, uint32_t before = 0);

// Computes the SHA-256 of bytes that are given in pieces.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void update(std::span<const std::byte> bytes);
  // Returns the hash of everything so far as 64 lower-case digits. update() may be called again afterwards.
  std::string hex() const;

 private:
  evp_md_ctx_st* const state_;
};

// Hashes of the text's bytes with the seed 0: the same numbers on every machine and in every version.
uint64_t xxh64(std::string_view text);  // XXH64

struct XxhBits128 {
  uint64_t high = 0;
  uint64_t low = 0;
  auto operator<=>(const XxhBits128&) const = default;
};
XxhBits128 xxh128(std::string_view text);      // XXH3 with 128 bits
std::string bytes_of(const XxhBits128& hash);  // 16 bytes

inline constexpr uint64_t kGoldenBits = 0x9e3779b97f4a7c15ULL;  // 2^64 / the golden ratio

// Mixes the bits of a 64-bit word: the finaliser of SplitMix64 (Steele, Lea, Flood 2014), a bijection. The
// generator SplitMix64 itself is mix_bits(counter += kGoldenBits).
constexpr uint64_t mix_bits(uint64_t word) {
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9ULL;
  word = (word ^ (word >> 27)) * 0x94d049bb133111ebULL;
  return word ^ (word >> 31);
}

}  // namespace tutti

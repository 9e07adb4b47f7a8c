#include "tutti/base/xxh64.h"

#include <array>
#include <bit>
#include <cstring>

namespace tutti {
namespace {

// The names and steps are those of the specification.
constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87;
constexpr uint64_t kPrime2 = 0xC2B2AE3D27D4EB4F;
constexpr uint64_t kPrime3 = 0x165667B19E3779F9;
constexpr uint64_t kPrime4 = 0x85EBCA77C2B2AE63;
constexpr uint64_t kPrime5 = 0x27D4EB2F165667C5;

template <class Word>
uint64_t take(std::string_view& text) {
  static_assert(std::endian::native == std::endian::little);
  Word word = 0;
  std::memcpy(&word, text.data(), sizeof word);
  text.remove_prefix(sizeof word);
  return word;
}

uint64_t round(uint64_t accumulator, uint64_t lane) {
  return std::rotl(accumulator + lane * kPrime2, 31) * kPrime1;
}

// Consumes all stripes of 32 bytes.
uint64_t converge_stripes(std::string_view& text) {
  std::array<uint64_t, 4> accumulators = {kPrime1 + kPrime2, kPrime2, 0, 0 - kPrime1};
  while (text.size() >= 32) {
    for (uint64_t& accumulator : accumulators) accumulator = round(accumulator, take<uint64_t>(text));
  }
  const auto& [a, b, c, d] = accumulators;
  uint64_t all = std::rotl(a, 1) + std::rotl(b, 7) + std::rotl(c, 12) + std::rotl(d, 18);
  for (const uint64_t accumulator : accumulators) all = (all ^ round(0, accumulator)) * kPrime1 + kPrime4;
  return all;
}

uint64_t avalanche(uint64_t hash) {
  hash = (hash ^ hash >> 33) * kPrime2;
  hash = (hash ^ hash >> 29) * kPrime3;
  return hash ^ hash >> 32;
}

}  // namespace

uint64_t xxh64(std::string_view text) {
  const uint64_t length = text.size();
  uint64_t hash = length + (length >= 32 ? converge_stripes(text) : kPrime5);
  while (text.size() >= 8) hash = std::rotl(hash ^ round(0, take<uint64_t>(text)), 27) * kPrime1 + kPrime4;
  if (text.size() >= 4) hash = std::rotl(hash ^ take<uint32_t>(text) * kPrime1, 23) * kPrime2 + kPrime3;
  while (!text.empty()) hash = std::rotl(hash ^ take<uint8_t>(text) * kPrime5, 11) * kPrime1;
  return avalanche(hash);
}

}  // namespace tutti

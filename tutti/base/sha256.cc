#include "tutti/base/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace tutti {
namespace {

// The round constants K of the standard: the fractions of the cube roots of the first 64 primes.
alignas(16) constexpr std::array<uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t big_endian(const std::byte* bytes) {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = (value << 8) | static_cast<uint32_t>(bytes[i]);
  return value;
}

#if defined(__x86_64__)
// Bit 29 of EBX in leaf 7 indicates SHA; __builtin_cpu_supports does not know it in every compiler that we
// build with.
bool has_instructions() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __builtin_cpu_supports("sse4.1") != 0 && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 &&
         ((b >> 29) & 1) != 0;
}
#else
bool has_instructions() { return false; }
#endif

}  // namespace

Sha256::Sha256(Code code)
    : compress_(code == Code::Fastest && has_instructions() ? compress_by_instruction : compress_portable),
      state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19} {
}

// Named as in the standard: message schedule w, working variables a to h.
void Sha256::compress_portable(State& state, const std::byte* blocks, size_t count) {
  std::array<uint32_t, 64> w{};
  for (; count > 0; --count, blocks += kBlock) {
    for (size_t t = 0; t < 16; ++t) w[t] = big_endian(blocks + 4 * t);
    for (size_t t = 16; t < 64; ++t) {
      const uint32_t sigma0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
      const uint32_t sigma1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
      w[t] = w[t - 16] + sigma0 + w[t - 7] + sigma1;
    }
    auto [a, b, c, d, e, f, g, h] = state;
    for (size_t t = 0; t < 64; ++t) {
      const uint32_t sum1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
      const uint32_t t1 = h + sum1 + ((e & f) ^ (~e & g)) + kRound[t] + w[t];
      const uint32_t sum0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
      const uint32_t t2 = sum0 + ((a & b) ^ (a & c) ^ (b & c));
      h = std::exchange(g, std::exchange(f, std::exchange(e, d + t1)));
      d = std::exchange(c, std::exchange(b, std::exchange(a, t1 + t2)));
    }
    const State added = {a, b, c, d, e, f, g, h};
    for (size_t i = 0; i < state.size(); ++i) state[i] += added[i];
  }
}

#if defined(__x86_64__)
// Each iteration computes four rounds. The instructions need the state as ABEF and CDGH, and the schedule in
// groups of four words.
__attribute__((target("sha,sse4.1"))) void Sha256::compress_by_instruction(State& state,
                                                                           const std::byte* blocks,
                                                                           size_t count) {
  const __m128i swap_bytes = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  auto* words = reinterpret_cast<__m128i*>(state.data());
  const __m128i cdab = _mm_shuffle_epi32(_mm_loadu_si128(words), 0xb1);
  const __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128(words + 1), 0x1b);
  __m128i abef = _mm_alignr_epi8(cdab, efgh, 8);
  __m128i cdgh = _mm_blend_epi16(efgh, cdab, 0xf0);
  for (; count > 0; --count, blocks += kBlock) {
    const __m128i abef_before = abef;
    const __m128i cdgh_before = cdgh;
    __m128i w[16];
    for (int t = 0; t < 16; ++t) {
      if (t < 4) {
        w[t] = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(blocks) + t), swap_bytes);
      } else {
        const __m128i seven_back = _mm_alignr_epi8(w[t - 1], w[t - 2], 4);
        w[t] = _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(w[t - 4], w[t - 3]), seven_back),
                                    w[t - 1]);
      }
      const __m128i k = _mm_load_si128(reinterpret_cast<const __m128i*>(kRound.data()) + t);
      const __m128i input = _mm_add_epi32(w[t], k);
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, input);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(input, 0x0e));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1b);
  const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xb1);
  _mm_storeu_si128(words, _mm_blend_epi16(feba, dchg, 0xf0));
  _mm_storeu_si128(words + 1, _mm_alignr_epi8(dchg, feba, 8));
}
#else
void Sha256::compress_by_instruction(State& state, const std::byte* blocks, size_t count) {
  compress_portable(state, blocks, count);
}
#endif

void Sha256::update(std::span<const std::byte> bytes) {
  const size_t held = length_ % kBlock;
  length_ += bytes.size();
  if (held > 0) {
    const size_t taken = std::min(bytes.size(), kBlock - held);
    std::copy_n(bytes.begin(), taken, pending_.begin() + held);
    bytes = bytes.subspan(taken);
    if (held + taken < kBlock) return;
    compress_(state_, pending_.data(), 1);
  }
  compress_(state_, bytes.data(), bytes.size() / kBlock);
  const auto rest = bytes.last(bytes.size() % kBlock);
  std::copy(rest.begin(), rest.end(), pending_.begin());
}

std::string Sha256::hex() const {
  // The padding: a one bit, zeros, and the length in bits in the last eight bytes of a block.
  Sha256 padded = *this;
  const size_t held = length_ % kBlock;
  const size_t zeros = (held < 56 ? 56 : 56 + kBlock) - held - 1;
  std::array<std::byte, 2 * kBlock> padding{};
  padding[0] = std::byte{0x80};
  for (size_t i = 0; i < 8; ++i) padding[1 + zeros + i] = static_cast<std::byte>(length_ * 8 >> (56 - 8 * i));
  padded.update(std::span(padding).first(1 + zeros + 8));
  std::string text;
  for (const uint32_t word : padded.state_) text += fmt::format("{:08x}", word);
  return text;
}

}  // namespace tutti

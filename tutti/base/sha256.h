#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace tutti {

// SHA-256 (FIPS 180-4) of bytes that come in pieces.
class Sha256 {
 public:
  // Portable leaves the CPU's instructions aside; only tests ask for it.
  enum class Code { Fastest, Portable };
  explicit Sha256(Code code = Code::Fastest);

  void update(std::span<const std::byte> bytes);
  // The 64 lower-case digits of everything so far. More may follow.
  std::string hex() const;

 private:
  static constexpr size_t kBlock = 64;
  using State = std::array<uint32_t, 8>;
  using Compress = void (*)(State& state, const std::byte* blocks, size_t count);

  static void compress_portable(State& state, const std::byte* blocks, size_t count);
  static void compress_by_instruction(State& state, const std::byte* blocks, size_t count);

  Compress compress_;
  State state_;
  std::array<std::byte, kBlock> pending_{};  // the first length_ % kBlock bytes of the block to come
  uint64_t length_ = 0;
};

}  // namespace tutti

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace tutti {

// Computes the SHA-256 (FIPS 180-4) of bytes that are given in pieces.
class Sha256 {
 public:
  // Portable does not use the CPU's SHA instructions; only tests request it.
  enum class Code { Fastest, Portable };
  explicit Sha256(Code code = Code::Fastest);

  void update(std::span<const std::byte> bytes);
  // Returns the hash of everything so far as 64 lower-case digits. update() may be called again afterwards.
  std::string hex() const;

 private:
  static constexpr size_t kBlock = 64;
  using State = std::array<uint32_t, 8>;
  using Compress = void (*)(State& state, const std::byte* blocks, size_t count);

  static void compress_portable(State& state, const std::byte* blocks, size_t count);
  static void compress_by_instruction(State& state, const std::byte* blocks, size_t count);

  Compress compress_;
  State state_;
  std::array<std::byte, kBlock> pending_{};  // the first length_ % kBlock bytes of the next block
  uint64_t length_ = 0;
};

}  // namespace tutti

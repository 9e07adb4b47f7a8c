#pragma once

#include <cstddef>
#include <span>
#include <string>

struct evp_md_ctx_st;  // of libcrypto

namespace tutti {

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

}  // namespace tutti

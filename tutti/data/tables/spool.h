#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "tutti/base/file.h"

namespace tutti::data {

// An unnamed file in TMPDIR or else /var/tmp, which is removed with this object. Thread-safe.
class Spool {
 public:
  // `what` describes the contents for error messages: "unpacked Parquet".
  explicit Spool(const std::string& what);

  // Reserves space for `bytes` bytes and returns its offset.
  uint64_t reserve(uint64_t bytes) { return end_.fetch_add(bytes); }
  void write(uint64_t at, std::span<const std::byte> bytes) const { write_at(fd_, what_, at, bytes); }
  uint64_t append(std::span<const std::byte> bytes) {
    const uint64_t at = reserve(bytes.size());
    write(at, bytes);
    return at;
  }

  void read_at(uint64_t offset, std::span<std::byte> bytes) const;

 private:
  std::string what_;
  FileDescriptor fd_;
  std::atomic<uint64_t> end_ = 0;
};

}  // namespace tutti::data

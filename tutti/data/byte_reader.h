#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace tutti::data {

// The bytes of a file from front to back. Used by one thread.
class ByteReader {
 public:
  virtual ~ByteReader() = default;

  // Up to `size` bytes; fewer only at the end. DataLoss where the file cannot be what it should be.
  virtual size_t read(char* to, size_t size) = 0;

  // More bytes than this cannot come out of the whole file, so a header that promises more is lying.
  virtual uint64_t most_bytes() const = 0;
};

// Opens a plain or gzip-compressed file; which of the two it is, its first bytes tell. InvalidArgument where
// it is missing, no regular file, or not readable.
std::unique_ptr<ByteReader> open_bytes(const std::string& path);

}  // namespace tutti::data

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace tutti::data {

// Reads the bytes of a file sequentially. Not thread-safe.
class ByteReader {
 public:
  virtual ~ByteReader() = default;

  // Reads up to `size` bytes; fewer only at the end. Throws DataLoss if the file is damaged.
  virtual size_t read(char* to, size_t size) = 0;

  // An upper limit of the bytes that the file can yield, for checking the size that a header claims.
  virtual uint64_t most_bytes() const = 0;
};

// Opens a plain or gzip-compressed file; its first bytes determine which. Throws InvalidArgument if it is
// missing, not a regular file, or not readable.
std::unique_ptr<ByteReader> open_bytes(const std::string& path);

}  // namespace tutti::data

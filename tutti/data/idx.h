#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <torch/types.h>

#include "tutti/data/feed.h"

namespace tutti::data {

// Reads an IDX file, plain or gzip-compressed: the format in which MNIST is distributed. Its header is two
// zero bytes, a code for the type, the number of dimensions, and the dimensions as big-endian 32-bit numbers;
// the elements follow in big-endian order, with the last dimension varying fastest.
//
// Throws a DataLoss that names file and byte if the header is invalid or there are more or fewer elements
// than it states; its size is checked against the file's size before memory is allocated. In a compressed
// file the byte is counted from the start of the uncompressed data.
torch::Tensor read_idx(const std::string& path);

// Training and test digits. Batches have "image" (float32, Nx1x28x28, 0 to 1) and "label" (int64, N).
class Digits {
 public:
  Digits(Feed train, Feed test) : train_(std::move(train)), test_(std::move(test)) {}

  Feed train() const { return train_; }
  Feed test() const { return test_; }

 private:
  Feed train_;
  Feed test_;
};

// Returns the digits of MNIST from its four IDX files in `dir`, plain or .gz, under their usual names. They
// stay in memory as bytes and are converted to floats batch by batch. A missing file is an InvalidArgument. A
// file that is damaged, has no digits, or does not match its labels is a DataLoss that names the file and the
// byte or record.
Digits mnist(const std::string& dir);

// Reads the bytes of a file sequentially. Not thread-safe.
class ByteReader {
 public:
  virtual ~ByteReader() = default;

  // Reads up to `size` bytes; fewer only at the end. Throws DataLoss if the file is damaged.
  virtual size_t read(char* to, size_t size) = 0;

  // An upper limit of the number of bytes that the file can yield, for checking the size in a header.
  virtual uint64_t most_bytes() const = 0;
};

// Decompresses consecutive gzip members. `path` is used in errors. Throws DataLoss if the data is damaged,
// truncated, or followed by other data, and Unimplemented if this build has no zlib.
std::unique_ptr<ByteReader> gunzip(std::unique_ptr<ByteReader> compressed, const std::string& path);

}  // namespace tutti::data

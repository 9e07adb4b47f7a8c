#pragma once

#include <string>

#include <torch/types.h>

namespace tutti::data {

// Reads an IDX file, plain or gzip-compressed: the format in which MNIST is handed around. Its header is two
// zero bytes, a code for the type, the number of dimensions, and the dimensions as big-endian 32-bit words;
// then come the elements, big-endian, the last dimension fastest.
//
// Fails with DataLoss that names file and byte where the header is no such header or the elements are more or
// fewer than it promises; the promise is checked against the file's size before memory is taken for it. In a
// compressed file the byte counts from the start of what was compressed.
torch::Tensor read_idx(const std::string& path);

}  // namespace tutti::data

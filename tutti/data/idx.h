#pragma once

#include <string>

#include <torch/types.h>

namespace tutti::data {

// Reads an IDX file, plain or gzip-compressed: the format in which MNIST is distributed. Its header is two
// zero bytes, a code for the type, the number of dimensions, and the dimensions as big-endian 32-bit words;
// the elements follow in big-endian order, with the last dimension varying fastest.
//
// Throws a DataLoss that names file and byte if the header is invalid or there are more or fewer elements
// than it states; its size is checked against the file's size before memory is allocated. In a compressed
// file the byte is counted from the start of the uncompressed data.
torch::Tensor read_idx(const std::string& path);

}  // namespace tutti::data

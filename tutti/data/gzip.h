#pragma once

#include <memory>
#include <string>

#include "tutti/data/byte_reader.h"

namespace tutti::data {

// Decompresses consecutive gzip members. `path` is used in errors. Throws DataLoss if the data is damaged,
// truncated, or followed by other data, and Unimplemented if this build has no zlib.
std::unique_ptr<ByteReader> gunzip(std::unique_ptr<ByteReader> compressed, const std::string& path);

}  // namespace tutti::data

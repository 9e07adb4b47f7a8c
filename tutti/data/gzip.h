#pragma once

#include <memory>
#include <string>

#include "tutti/data/byte_reader.h"

namespace tutti::data {

// What the gzip members in `compressed` hold, one after the other. `path` is for errors: DataLoss where the
// data is damaged, cut short, or followed by something else. Without zlib in this build: Unimplemented.
std::unique_ptr<ByteReader> gunzip(std::unique_ptr<ByteReader> compressed, const std::string& path);

}  // namespace tutti::data

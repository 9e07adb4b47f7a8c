#include "tutti/base/error.h"
#include "tutti/data/idx.h"

namespace tutti::data {

std::unique_ptr<ByteReader> gunzip(std::unique_ptr<ByteReader>, const std::string& path) {
  fail(ErrorKind::Unimplemented,
       "{}: the file is gzip-compressed, but this build has no zlib. Decompress it, or build with "
       "TUTTI_WITH_ZLIB=ON",
       path);
}

}  // namespace tutti::data

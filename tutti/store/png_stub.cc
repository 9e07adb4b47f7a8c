#include "tutti/base/error.h"
#include "tutti/store/png.h"

namespace tutti::store {

std::string encode_png(std::span<const std::byte>, int64_t, int64_t, int64_t) {
  fail(ErrorKind::Unimplemented,
       "images in event files are stored as PNG, but this build has no zlib. Leave the image out, or build "
       "with "
       "TUTTI_WITH_ZLIB=ON");
}

}  // namespace tutti::store

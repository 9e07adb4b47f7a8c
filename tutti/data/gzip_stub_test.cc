#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/data/idx.h"

namespace tutti::data {
namespace {

TEST(Gzip, says_what_to_do_in_a_build_without_zlib) {
  const TestFolder folder;
  const auto path = folder.write("file.gz", "\x1f\x8b rest");
  EXPECT_THAT(error_of(ErrorKind::Unimplemented, [&] { read_idx(path); }),
              testing::HasSubstr("TUTTI_WITH_ZLIB=ON"));
}

}  // namespace
}  // namespace tutti::data

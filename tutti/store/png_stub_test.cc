#include <torch/types.h>

#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/store/event_file.h"
#include "tutti/store/png.h"

namespace tutti::store {
namespace {

TEST(Png, says_what_to_do_in_a_build_without_zlib) {
  const TestFolder folder;
  EventWriter writer(folder.path());
  EXPECT_THAT(error_of(ErrorKind::Unimplemented,
                       [&] {
                         writer.image("x", 1, torch::zeros({2, 2}));
                       }),
              testing::HasSubstr("TUTTI_WITH_ZLIB=ON"));
}

}  // namespace
}  // namespace tutti::store

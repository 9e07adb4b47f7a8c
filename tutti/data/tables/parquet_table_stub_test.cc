#include "tutti/base/test_errors.h"
#include "tutti/data/tables/table.h"

namespace tutti::data {
namespace {

TEST(ParquetTable, says_what_to_do_in_a_build_without_arrow) {
  EXPECT_THAT(error_of(ErrorKind::Unimplemented, [] { open_parquet("a.parquet", {}, {}, BadRows::Error); }),
              testing::HasSubstr("TUTTI_WITH_PARQUET=ON"));
}

}  // namespace
}  // namespace tutti::data

#include "tutti/base/error.h"
#include "tutti/data/tables/table.h"

namespace tutti::data {

std::unique_ptr<Table> open_parquet(const std::string& path, const std::string&, const TableKind&, BadRows) {
  fail(ErrorKind::Unimplemented,
       "{}: this build cannot read Parquet. Write the table as TSV or CSV, or install Arrow and build with "
       "TUTTI_WITH_PARQUET=ON",
       path);
}

}  // namespace tutti::data

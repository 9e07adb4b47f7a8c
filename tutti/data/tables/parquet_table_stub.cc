#include "tutti/base/error.h"
#include "tutti/data/tables/table.h"

namespace tutti::data {
namespace {

[[noreturn]] void fail_without_arrow(const std::string& path) {
  fail(ErrorKind::Unimplemented,
       "{}: this build cannot read Parquet. Write the table as TSV or CSV, or install Arrow and build with "
       "TUTTI_WITH_PARQUET=ON",
       path);
}

}  // namespace

std::unique_ptr<Table> open_parquet(const std::string& path, const TextFormat&, const std::vector<TableView>&,
                                    BadRows, const OnBytes&) {
  fail_without_arrow(path);
}

void each_parquet_text(const std::string& path, const VisitText&) { fail_without_arrow(path); }

}  // namespace tutti::data

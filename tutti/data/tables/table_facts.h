#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/data/statistics.h"
#include "tutti/data/tables/table_kind.h"
#include "tutti/data/tables/text_format.h"

namespace tutti::data {

// What is found out about the file of a table by reading all of it, and then kept beside it, in
// .NAME.tutti.json, for as long as the file has the same size and time and is read the same way. Of several
// tasks that ask at once, one reads it and the others wait. In a folder that cannot be written nothing is
// kept.

struct TableOutline {
  int64_t rows = 0;
  std::vector<std::string> columns = {};  // names, without that of the IDs
};
TableOutline outline_of(const std::string& path, const TextFormat& format, const TableKind& kind = {});

TableStatistics statistics_of(const std::string& path, const TextFormat& format);

}  // namespace tutti::data

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/data/statistics.h"
#include "tutti/data/tables/table_kind.h"
#include "tutti/data/tables/text_format.h"

namespace tutti::data {

// Facts about the file of a table that can only be found by reading all of it. They are cached next to it in
// .NAME.tutti.json, and are valid as long as the file has the same size and time and is read in the same
// format. If several tasks ask at once, one reads the file and the others wait; if it does not finish in the
// time that this should take, they read it themselves. Nothing is cached in a folder that is not writable.

struct TableOutline {
  int64_t rows = 0;
  std::vector<std::string> columns = {};  // names, without the ID column
};
TableOutline outline_of(const std::string& path, const TextFormat& format, const TableKind& kind = {});

TableStatistics statistics_of(const std::string& path, const TextFormat& format);

}  // namespace tutti::data

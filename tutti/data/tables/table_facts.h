#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/data/source.h"
#include "tutti/data/tables/schema.h"
#include "tutti/data/tables/table.h"

namespace tutti::data {

// Facts about the file of a table that can only be found by reading all of it. They are cached next to it in
// .NAME.tutti.json, and are valid as long as the file has the same size and time and is read in the same
// format. If several tasks ask at once, one reads the file and the others wait; if it does not finish in the
// expected time, they read the file themselves. Nothing is cached in a folder that is not writable.

// These do not depend on what the cells contain.
struct TableOutline {
  int64_t rows = 0;
  std::string id_column = {};             // "" without IDs
  std::vector<std::string> columns = {};  // names, without the ID column
};
// Tells the bytes of the file, at once if the facts are known.
TableOutline outline_of(const std::string& path, const TextFormat& format, const OnBytes& on_bytes = {});

// The statistics of a view whose kind is dense. They are cached by column and by type of the cells.
TableStatistics statistics_of(const std::string& path, const TextFormat& format, const TableView& view = {});

}  // namespace tutti::data

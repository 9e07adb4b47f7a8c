#pragma once

#include <memory>
#include <string>

#include "tutti/data/tables/table.h"

namespace tutti::data {

// A table stored as Parquet. Its IDs are texts or whole numbers, in the column named `id`, or in the first
// column if `id` is empty; all other columns hold numbers, or lists of numbers if the kind says so. Nulls are
// missing values.
//
// To read one row of Parquet, a part of typically 100,000 rows or more must be unpacked. Therefore parts that
// were read once are kept unpacked, in an unnamed file in TMPDIR or else /var/tmp.
//
// Throws Unimplemented in a build without Arrow.
std::unique_ptr<Table> open_parquet(const std::string& path, const std::string& id, const TableKind& kind,
                                    BadRows bad);

}  // namespace tutti::data

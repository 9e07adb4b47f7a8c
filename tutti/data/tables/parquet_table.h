#pragma once

#include <memory>
#include <string>

#include "tutti/data/tables/table.h"

namespace tutti::data {

// A table that is written as Parquet. Its IDs are texts or whole numbers, in the column of that name, or in
// the first where it is empty; all others hold numbers, or lists of numbers where the kind says so. Nulls are
// missing values.
//
// Of Parquet a part of some 100,000 rows at least has to be unpacked for the sake of one: so what was asked
// for once is kept unpacked, in a file without a name in TMPDIR or else /var/tmp.
//
// Unimplemented in a build without Arrow.
std::unique_ptr<Table> open_parquet(const std::string& path, const std::string& id, const TableKind& kind,
                                    BadRows bad);

}  // namespace tutti::data

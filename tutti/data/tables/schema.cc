#include "tutti/data/tables/schema.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti::data {

Schema::Schema(std::vector<Entry> tables) : tables_(std::move(tables)) {
  if (tables_.empty()) fail(ErrorKind::InvalidArgument, "a schema without tables");
  for (auto table = tables_.begin(); table != tables_.end(); ++table) {
    if (table->first.empty() || table->second.file.empty())
      fail(ErrorKind::InvalidArgument, "a table of a schema has no {}",
           table->first.empty() ? "name" : "file");
    for (auto other = tables_.begin(); other != table; ++other) {
      if (other->first == table->first)
        fail(ErrorKind::InvalidArgument, "two tables of a schema are called '{}'", table->first);
      if (other->second.file == table->second.file)
        fail(ErrorKind::InvalidArgument, "the tables '{}' and '{}' of a schema are both in {}", other->first,
             table->first, table->second.file);
    }
  }
}

const TableFile& Schema::operator[](const std::string& name) const {
  std::vector<std::string> names;
  for (const auto& [own, file] : tables_) {
    if (own == name) return file;
    names.push_back(own);
  }
  fail(ErrorKind::InvalidArgument, "the schema has no table '{}', but {}{}", name, fmt::join(names, ", "),
       did_you_mean(name, names));
}

}  // namespace tutti::data

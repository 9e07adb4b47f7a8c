#include "tutti/data/tables/schema.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti::data {

bool TableFile::is_idx() const {
  std::string_view name = file;
  if (name.ends_with(".gz")) name.remove_suffix(3);
  return name.ends_with(".idx") || name.ends_with("-ubyte");
}

Schema::Schema(std::vector<Entry> tables) : tables_(std::move(tables)) {
  if (tables_.empty()) fail(ErrorKind::InvalidArgument, "the schema has no tables");
  for (auto table = tables_.begin(); table != tables_.end(); ++table) {
    if (table->first.empty() || table->second.file.empty())
      fail(ErrorKind::InvalidArgument, "a table of the schema has no {}",
           table->first.empty() ? "name" : "file");
    const TableKind& kind = table->second.kind;
    const bool is_sized = kind.form == TableKind::Form::Padded || kind.form == TableKind::Form::Indices;
    if (is_sized && kind.size < 1)
      fail(ErrorKind::InvalidArgument, "the table '{}' of the schema has size {}; expected 1 or more",
           table->first, kind.size);
    // Every index must be exact as a float.
    constexpr int64_t kMostIndices = int64_t{1} << 24;
    if (kind.form == TableKind::Form::Indices && kind.size > kMostIndices)
      fail(ErrorKind::InvalidArgument, "the table '{}' of the schema has {} indices; the maximum is {}",
           table->first, kind.size, kMostIndices);
    if (table->second.is_idx() && kind.form != TableKind::Form::Dense)
      fail(ErrorKind::InvalidArgument,
           "the table '{}' of the schema is an IDX file, which cannot contain lists", table->first);
    for (auto other = tables_.begin(); other != table; ++other) {
      if (other->first == table->first)
        fail(ErrorKind::InvalidArgument, "two tables of the schema are named '{}'", table->first);
      if (other->second.file == table->second.file)
        fail(ErrorKind::InvalidArgument, "the tables '{}' and '{}' of the schema use the same file, {}",
             other->first, table->first, table->second.file);
    }
  }
}

size_t Schema::index_of(const std::string& name) const {
  std::vector<std::string> names;
  for (const auto& [own, file] : tables_) {
    if (own == name) return names.size();
    names.push_back(own);
  }
  fail(ErrorKind::InvalidArgument, "the schema has no table '{}'; it has {}{}", name, fmt::join(names, ", "),
       did_you_mean(name, names));
}

}  // namespace tutti::data

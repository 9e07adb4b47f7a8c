#include "tutti/data/tables/schema.h"

#include <algorithm>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/error.h"
#include "tutti/base/hashes.h"
#include "tutti/base/text.h"

namespace tutti::data {
namespace {

void require_kind(const std::string& name, const TableKind& kind) {
  const bool is_sized = kind.form == TableKind::Form::Padded || kind.form == TableKind::Form::Indices;
  if (is_sized && kind.size < 1)
    fail(ErrorKind::InvalidArgument, "the table '{}' of the schema has size {}; expected 1 or more", name,
         kind.size);
  // The number of elements of a sparse matrix must fit into an int64.
  constexpr int64_t kMostIndices = int64_t{1} << 40;
  if (kind.form == TableKind::Form::Indices && kind.size > kMostIndices)
    fail(ErrorKind::InvalidArgument, "the table '{}' of the schema has {} indices; the maximum is {}", name,
         kind.size, kMostIndices);
  if (kind.cells.is == CellType::Is::Category && kind.cells.buckets < 1)
    fail(ErrorKind::InvalidArgument,
         "the table '{}' of the schema has categories with {} buckets; expected 1 or more", name,
         kind.cells.buckets);
}

void require_table(const std::string& name, const TableFile& table) {
  if (name.empty() || table.file.empty())
    fail(ErrorKind::InvalidArgument, "a table of the schema has no {}", name.empty() ? "name" : "file");
  require_kind(name, table.kind);
  if (table.is_idx() && !(table.kind.is_dense() && table.kind.cells.is_float() && table.columns.empty()))
    fail(ErrorKind::InvalidArgument,
         "the table '{}' of the schema is an IDX file, which is read as it is: it has no kind and no columns",
         name);
  if (table.format.ids == Ids::RowNumbers && !table.format.id.empty())
    fail(ErrorKind::InvalidArgument,
         "the table '{}' of the schema has IDs in the column '{}', but Ids::RowNumbers says that it has none",
         name, table.format.id);
  std::set<std::string_view> columns;
  for (const std::string& column : table.columns) {
    if (!columns.insert(column).second)
      fail(ErrorKind::InvalidArgument, "the table '{}' of the schema has the column '{}' twice", name,
           column);
  }
}

}  // namespace

int64_t bucket_of(std::string_view text, int64_t buckets) {
  return static_cast<int64_t>(xxh64(text) % static_cast<uint64_t>(buckets));
}

std::string text_of(const CellType& cells) {
  if (cells.is_float()) return "float32";
  std::string text = cells.is == CellType::Is::Int64 ? "int64" : fmt::format("categories({})", cells.buckets);
  if (cells.missing) text += fmt::format(", missing {}", *cells.missing);
  return text;
}

std::vector<std::string> numbered(int64_t first, int64_t last) {
  std::vector<std::string> names;
  for (int64_t number = first; number <= last; ++number) names.push_back(std::to_string(number));
  return names;
}

bool TableFile::is_idx() const {
  std::string_view name = file;
  if (name.ends_with(".gz")) name.remove_suffix(3);
  return name.ends_with(".idx") || name.ends_with("-ubyte");
}

Schema::Schema(std::vector<Entry> tables) : tables_(std::move(tables)) {
  if (tables_.empty()) fail(ErrorKind::InvalidArgument, "the schema has no tables");
  for (size_t i = 0; i < tables_.size(); ++i) {
    const auto& [name, table] = tables_[i];
    require_table(name, table);
    for (size_t other = 0; other < i; ++other) {
      if (tables_[other].first == name)
        fail(ErrorKind::InvalidArgument, "two tables of the schema are named '{}'", name);
    }
    add_to_files(i);
  }
}

void Schema::add_to_files(size_t table) {
  const TableFile& own = tables_[table].second;
  const auto found = std::find_if(files_.begin(), files_.end(), [&](const std::vector<size_t>& file) {
    return tables_[file.front()].second.file == own.file;
  });
  if (found == files_.end()) {
    files_.push_back({table});
    return;
  }
  const auto& [first_name, first] = tables_[found->front()];
  if (own.is_idx() || first.format != own.format)
    fail(ErrorKind::InvalidArgument, "the tables '{}' and '{}' of the schema use the same file, {}{}",
         first_name, tables_[table].first, own.file, own.is_idx() ? "" : ", in different formats");
  found->push_back(table);
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

#include "tutti/data/tables/table.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/data/tables/cells.h"
#include "tutti/data/tables/text_table.h"

namespace tutti::data {

int64_t Table::row_in_file(int64_t row) const {
  return row + (std::upper_bound(skipped_.begin(), skipped_.end(), row) - skipped_.begin());
}

std::vector<CellBuffer> Table::buffers(int64_t rows) const {
  std::vector<CellBuffer> buffers;
  for (const TableView& view : views_) buffers.emplace_back(view.kind, view.columns.size(), rows);
  return buffers;
}

void Table::set_columns(std::vector<std::string> names, const TextFormat& format, const std::string& where) {
  std::unordered_set<std::string_view> seen;
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i].empty())
      fail(ErrorKind::DataLoss, "{}: column {} has no name{}", where, i + 1,
           i == 0 ? "; pandas writes one with index_label=\"ID\"" : "");
    if (!seen.insert(names[i]).second)
      fail(ErrorKind::DataLoss, "{}: two columns are called '{}'", where, names[i]);
  }
  names_ = std::move(names);
  columns_ = names_;
  has_ids_ = format.ids == Ids::Column;
  if (has_ids_) {
    const auto found =
        format.id.empty() ? columns_.begin() : std::find(columns_.begin(), columns_.end(), format.id);
    if (found == columns_.end())
      fail(ErrorKind::DataLoss, "{}: there is no column '{}', which should contain the IDs{}", where,
           format.id, did_you_mean(format.id, names_));
    id_at_ = static_cast<size_t>(found - columns_.begin());
    id_column_ = *found;
    columns_.erase(found);
  }
  for (TableView& view : views_) {
    view_columns_.push_back(columns_of(view, where));
    if (view.columns.empty()) view.columns = columns_;
  }
}

std::vector<size_t> Table::columns_of(const TableView& view, const std::string& where) const {
  if (view.columns.empty()) {
    std::vector<size_t> all(names_.size());
    std::iota(all.begin(), all.end(), size_t{0});
    if (has_ids_) all.erase(all.begin() + static_cast<ptrdiff_t>(id_at_));
    return all;
  }
  return find_columns(view.columns, names_, where);
}

std::string Table::problem_of_id(std::string_view id) {
  if (id.empty()) return "the ID is empty";
  return is_utf8(id) ? "" : fmt::format("the ID {} is not UTF-8", shown(id));
}

void Table::finish_rows(BadRows bad) {
  if (bad == BadRows::Error) {
    if (const auto twice = ids_.finish()) fail_twice(*twice);
    return;
  }
  for (const int64_t row : ids_.finish_without_doubles())
    leave_out(fmt::format("{}: the ID {} occurs more than once", path_, shown(id(row))));
}

std::vector<int64_t> matching_rows(const Table& table, const Table& other) {
  if (!table.has_ids() || !other.has_ids()) {
    if (table.size() != other.size())
      fail(ErrorKind::DataLoss,
           "{} has {} rows, but {} has {}; without IDs, both need the same rows in the same order",
           table.path(), table.size(), other.path(), other.size());
    std::vector<int64_t> same(static_cast<size_t>(table.size()));
    std::iota(same.begin(), same.end(), int64_t{0});
    return same;
  }
  IdIndex::Joined joined = table.ids().join(other.ids());
  const auto fail_alone = [](const Table& has, int64_t row, const Table& has_not) {
    fail(ErrorKind::DataLoss,
         "{}: there is no row with the ID '{}', which {} has; all tables must have the same IDs",
         has_not.path(), has.id(row), has.path());
  };
  if (joined.alone_here) fail_alone(table, *joined.alone_here, other);
  if (joined.alone_there) fail_alone(other, *joined.alone_there, table);
  return std::move(joined.rows);
}

std::vector<size_t> find_columns(const std::vector<std::string>& wanted,
                                 const std::vector<std::string>& names, const std::string& where) {
  std::unordered_map<std::string_view, size_t> index;
  for (size_t i = 0; i < names.size(); ++i) index.emplace(names[i], i);
  std::vector<size_t> found;
  for (const std::string& name : wanted) {
    const auto place = index.find(name);
    if (place == index.end())
      fail(ErrorKind::DataLoss, "{}: there is no column '{}', which the schema names{}", where, name,
           did_you_mean(name, names));
    found.push_back(place->second);
  }
  return found;
}

bool is_parquet(std::string_view path) { return path.ends_with(".parquet"); }

std::unique_ptr<Table> open_table(const std::string& path, const TextFormat& format,
                                  const std::vector<TableView>& views, BadRows bad, const OnBytes& on_bytes) {
  if (is_parquet(path)) return open_parquet(path, format, views, bad, on_bytes);
  return std::make_unique<TextTable>(path, format, views, bad, on_bytes);
}

std::string not_exact(std::string_view number, float nearest) {
  return fmt::format(
      "numbers are read as float32, which cannot represent the whole number {} exactly (the nearest is "
      "{:.0f}); read the column as int64(), or remove it",
      number, nearest);
}

std::string shown(std::string_view text) {
  constexpr size_t kMost = 40;
  return text.size() <= kMost ? fmt::format("'{}'", text) : fmt::format("'{}...'", text.substr(0, kMost));
}

}  // namespace tutti::data

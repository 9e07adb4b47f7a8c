#include "tutti/data/tables/table.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <optional>
#include <sys/file.h>
#include <sys/stat.h>
#include <thread>
#include <unordered_set>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/base/text.h"
#include "tutti/data/tables/cells.h"
#include "tutti/data/tables/text_table.h"

namespace tutti::data {
namespace {

// Indices are read as floats, which represent whole numbers up to 2^24 exactly.
void require_index(float index, int64_t size) {
  if (index >= 0 && index < static_cast<float>(size) && index == std::floor(index)) return;
  fail(ErrorKind::InvalidArgument, "{} is not an index from 0 to {}", index, size - 1);
}

}  // namespace

void Table::require_list(const float* numbers, int64_t length) const {
  if (kind_.form == TableKind::Form::Padded && length > kind_.size)
    fail(ErrorKind::InvalidArgument, "the list has {} numbers; the maximum is {}", length, kind_.size);
  if (kind_.form == TableKind::Form::Indices)
    std::for_each(numbers, numbers + length, [&](float index) { require_index(index, kind_.size); });
}

size_t Table::set_columns(std::vector<std::string> names, const std::string& id, const std::string& where) {
  std::unordered_set<std::string_view> seen;
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i].empty()) fail(ErrorKind::DataLoss, "{}: column {} has no name", where, i + 1);
    if (!seen.insert(names[i]).second)
      fail(ErrorKind::DataLoss, "{}: two columns are called '{}'", where, names[i]);
  }
  const auto found = id.empty() ? names.begin() : std::find(names.begin(), names.end(), id);
  if (found == names.end())
    fail(ErrorKind::DataLoss, "{}: there is no column '{}', which should contain the IDs{}", where, id,
         did_you_mean(id, names));
  const auto index = static_cast<size_t>(found - names.begin());
  id_column_ = *found;
  names.erase(found);
  columns_ = std::move(names);
  return index;
}

std::string Table::problem_of_id(std::string_view id) {
  if (id.empty()) return "the ID is empty";
  return is_utf8(id) ? "" : fmt::format("the ID {} is not UTF-8", shown(id));
}

void Table::finish_ids(BadRows bad) {
  if (bad == BadRows::Error) {
    if (const auto twice = ids_.finish()) fail_twice(*twice);
    return;
  }
  for (const int64_t row : ids_.finish_without_doubles())
    leave_out(fmt::format("{}: the ID {} occurs more than once", path_, shown(id(row))));
}

std::vector<int64_t> rows_with_same_ids(const Table& table, const Table& other) {
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

bool is_parquet(std::string_view path) { return path.ends_with(".parquet"); }

std::unique_ptr<Table> open_table(const std::string& path, const TextFormat& format, const TableKind& kind,
                                  BadRows bad) {
  if (is_parquet(path)) return open_parquet(path, format.id, kind, bad);
  return std::make_unique<TextTable>(path, format, kind, bad);
}

std::string not_exact(std::string_view number, float nearest) {
  return fmt::format(
      "tables are read as float32, which cannot represent the whole number {} exactly (the "
      "nearest is {:.0f}); write it as several columns of smaller "
      "numbers, or remove the column",
      number, nearest);
}

std::string shown(std::string_view text) {
  constexpr size_t kMost = 40;
  return text.size() <= kMost ? fmt::format("'{}'", text) : fmt::format("'{}...'", text.substr(0, kMost));
}

namespace {

constexpr int kVersion = 1;  // version of the algorithms and the format

// Waits as long as another task may need to read the file. It may also be stopped, or be another program, so
// that nobody should depend on it.
std::chrono::milliseconds patience_for(const FileDescriptor& file) {
  constexpr int64_t kLeast = 5000;
  constexpr int64_t kBytesPerMillisecond = 100'000;
  struct stat found {};
  static_cast<void>(fstat(file.get(), &found));
  return std::chrono::milliseconds(kLeast + found.st_size / kBytesPerMillisecond);
}

// Holds a lock for its lifetime, so that only one of several tasks reads the file. Goes on without the lock
// if the file system has none, or if it is not free in time: then this task reads the file as well.
class FileLock {
 public:
  explicit FileLock(const std::string& path) : fd_(path, O_RDONLY) {
    constexpr std::chrono::milliseconds kBetweenTries{10};
    const auto end = std::chrono::steady_clock::now() + patience_for(fd_);
    while (flock(fd_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK &&
           std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(kBetweenTries);
  }

 private:
  const FileDescriptor fd_;
};

std::string kept_at(const std::string& path) {
  const std::filesystem::path file(path);
  return (file.parent_path() / ("." + file.filename().string() + ".tutti.json")).string();
}

// Identifies the version of the file and the format in which it is read.
Json fingerprint_of(const std::string& path, const TextFormat& format) {
  struct stat found {};
  if (stat(path.c_str(), &found) != 0) fail_errno(errno, path);
  return {{"facts", kVersion},
          {"size", found.st_size},
          {"time", fmt::format("{}.{:09}", found.st_mtim.tv_sec, found.st_mtim.tv_nsec)},
          {"separator", static_cast<int>(format.separator)},
          {"quotes", format.quotes},
          {"header", format.header},
          {"id", format.id},
          {"missing", format.missing}};
}

// Returns the cached facts, or only the fingerprint if there are none, or they are outdated or damaged.
Json kept_facts(const std::string& path, const Json& fingerprint) {
  try {
    const std::string file = kept_at(path);
    const Json facts = parse_json(read_file(file), file);
    if (facts.at("of") == fingerprint) return facts;
  } catch (const std::exception&) {
    // The cause does not matter, since the facts can be computed again.
  }
  return {{"of", fingerprint}};
}

void keep(const std::string& path, const Json& facts) {
  try {
    replace_file(kept_at(path), facts.dump() + "\n");
  } catch (const std::exception&) {
    // The facts are computed again the next time.
  }
}

void note(Json& facts, const Table& table) {
  facts["rows"] = table.size();
  facts["names"] = table.columns();
}

Json to_json(const TableStatistics& statistics) {
  Json columns = Json::array();
  for (const ColumnStatistics& column : statistics.columns) {
    if (column.count > 0) {
      columns.push_back({column.count, column.missing, column.min, column.max, column.mean, column.squares});
    } else {
      columns.push_back({0, column.missing});
    }
  }
  return columns;
}

// Returns nullopt unless they have the format that to_json() writes.
std::optional<TableStatistics> statistics_in(const Json& facts) {
  const auto columns = facts.find("columns");
  const auto names = facts.find("names");
  const bool as_many = columns != facts.end() && columns->is_array() && names != facts.end() &&
                       names->is_array() && columns->size() == names->size();
  if (!as_many) return std::nullopt;
  TableStatistics statistics;
  for (const Json& numbers : *columns) {
    const auto is_count = [&](size_t i) { return numbers[i].is_number_unsigned(); };
    if (!numbers.is_array() || numbers.size() < 2 || !is_count(0) || !is_count(1)) return std::nullopt;
    ColumnStatistics& column = statistics.columns.emplace_back();
    column.count = numbers[0].get<int64_t>();
    column.missing = numbers[1].get<int64_t>();
    if (column.count < 0 || column.missing < 0) return std::nullopt;
    if (column.count == 0) continue;
    const bool complete =
        numbers.size() == 6 && std::all_of(numbers.begin() + 2, numbers.end(),
                                           [](const Json& number) { return number.is_number(); });
    if (!complete) return std::nullopt;
    column.min = numbers[2].get<double>();
    column.max = numbers[3].get<double>();
    column.mean = numbers[4].get<double>();
    column.squares = numbers[5].get<double>();
  }
  return statistics;
}

// Returns nullopt if they are unknown or do not have the format that note() writes.
std::optional<TableOutline> outline_in(const Json& facts) {
  const auto rows = facts.find("rows");
  const auto names = facts.find("names");
  if (rows == facts.end() || !rows->is_number_unsigned() || names == facts.end() || !names->is_array())
    return std::nullopt;
  TableOutline outline{rows->get<int64_t>(), {}};
  constexpr int64_t kMostRows = int64_t{1} << 48;
  if (outline.rows < 0 || outline.rows > kMostRows) return std::nullopt;
  for (const Json& name : *names) {
    if (!name.is_string()) return std::nullopt;
    outline.columns.push_back(name.get<std::string>());
  }
  return outline;
}

// JSON cannot represent infinite numbers.
bool can_be_kept(const TableStatistics& statistics) {
  return std::all_of(statistics.columns.begin(), statistics.columns.end(), [](const ColumnStatistics& c) {
    return c.count == 0 || (std::isfinite(c.min) && std::isfinite(c.max) && std::isfinite(c.squares));
  });
}

TableStatistics look_through(const Table& table) {
  TableStatistics statistics{std::vector<ColumnStatistics>(table.columns().size())};
  std::vector<float> numbers(table.columns().size());
  std::string buffer;
  for (int64_t row = 0; row < table.size(); ++row) {
    table.read(row, numbers.data(), buffer);
    for (size_t i = 0; i < numbers.size(); ++i) statistics.columns[i].add(numbers[i]);
  }
  return statistics;
}

}  // namespace

TableOutline outline_of(const std::string& path, const TextFormat& format, const TableKind& kind) {
  const FileLock lock(path);
  Json facts = kept_facts(path, fingerprint_of(path, format));
  if (auto outline = outline_in(facts)) return *std::move(outline);
  const std::unique_ptr<Table> table = open_table(path, format, kind);
  note(facts, *table);
  keep(path, facts);
  return {table->size(), table->columns()};
}

TableStatistics statistics_of(const std::string& path, const TextFormat& format) {
  const FileLock lock(path);
  Json facts = kept_facts(path, fingerprint_of(path, format));
  if (auto statistics = statistics_in(facts)) return *std::move(statistics);
  const std::unique_ptr<Table> table = open_table(path, format);
  const TableStatistics statistics = look_through(*table);
  note(facts, *table);
  if (can_be_kept(statistics)) facts["columns"] = to_json(statistics);
  keep(path, facts);
  return statistics;
}

}  // namespace tutti::data

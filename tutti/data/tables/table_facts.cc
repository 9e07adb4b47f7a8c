#include "tutti/data/tables/table_facts.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <fcntl.h>
#include <filesystem>
#include <map>
#include <optional>
#include <sys/file.h>
#include <sys/stat.h>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/json.h"

namespace tutti::data {
namespace {

constexpr int kVersion = 2;  // version of the algorithms and the format

// The time that another task may need to read the file. The wait is limited, since the holder of the lock may
// also be a stopped task, or another program.
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
  if (stat(path.c_str(), &found) != 0) fail_errno(errno, path.empty() ? "a table without a path" : path);
  return {{"facts", kVersion},
          {"size", found.st_size},
          {"time", fmt::format("{}.{:09}", found.st_mtim.tv_sec, found.st_mtim.tv_nsec)},
          {"separator", static_cast<int>(format.separator)},
          {"quotes", format.quotes},
          {"header", format.header},
          {"numbered", format.ids == Ids::RowNumbers},
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
    // The cause does not matter: the facts are then computed again.
  }
  return {{"of", fingerprint}};
}

void save_facts(const std::string& path, const Json& facts) {
  try {
    replace_file(kept_at(path), facts.dump() + "\n");
  } catch (const std::exception&) {
    // The facts are computed again the next time.
  }
}

void note(Json& facts, const Table& table) {
  facts["rows"] = table.size();
  facts["ids"] = table.id_column();
  facts["names"] = table.columns();
}

// Returns nullopt if they are unknown or do not have the format that note() writes.
std::optional<TableOutline> outline_in(const Json& facts) {
  const auto rows = facts.find("rows");
  const auto ids = facts.find("ids");
  const auto names = facts.find("names");
  if (rows == facts.end() || !rows->is_number_unsigned() || ids == facts.end() || !ids->is_string() ||
      names == facts.end() || !names->is_array())
    return std::nullopt;
  TableOutline outline{rows->get<int64_t>(), ids->get<std::string>(), {}};
  constexpr int64_t kMostRows = int64_t{1} << 48;
  if (outline.rows < 0 || outline.rows > kMostRows) return std::nullopt;
  for (const Json& name : *names) {
    if (!name.is_string()) return std::nullopt;
    outline.columns.push_back(name.get<std::string>());
  }
  return outline;
}

using StatisticsByColumn = std::map<std::string, ColumnStatistics>;

// JSON cannot represent infinite numbers.
bool can_be_kept(const ColumnStatistics& c) {
  return c.count == 0 || (std::isfinite(c.min) && std::isfinite(c.max) && std::isfinite(c.squares));
}

Json to_json(const StatisticsByColumn& statistics) {
  Json columns = Json::array();
  for (const auto& [name, column] : statistics) {
    if (!can_be_kept(column)) continue;
    Json numbers = {name, column.count, column.missing};
    if (column.count > 0)
      numbers.insert(numbers.end(), {column.min, column.max, column.mean, column.squares});
    columns.push_back(std::move(numbers));
  }
  return columns;
}

// Returns nullopt unless the list has the format that to_json() writes.
std::optional<ColumnStatistics> column_in(const Json& numbers) {
  constexpr size_t kNumbers = 7;
  ColumnStatistics column;
  if (!numbers.is_array() || numbers.size() < 3 || !numbers[0].is_string() ||
      !numbers[1].is_number_unsigned() || !numbers[2].is_number_unsigned())
    return std::nullopt;
  column.count = numbers[1].get<int64_t>();
  column.missing = numbers[2].get<int64_t>();
  if (column.count < 0 || column.missing < 0) return std::nullopt;
  if (column.count == 0) return column;
  const bool complete =
      numbers.size() == kNumbers &&
      std::all_of(numbers.begin() + 3, numbers.end(), [](const Json& number) { return number.is_number(); });
  if (!complete) return std::nullopt;
  column.min = numbers[3].get<double>();
  column.max = numbers[4].get<double>();
  column.mean = numbers[5].get<double>();
  column.squares = numbers[6].get<double>();
  return column;
}

// The known statistics of columns with cells of this type.
StatisticsByColumn statistics_in(const Json& facts, const std::string& type) {
  StatisticsByColumn known;
  const auto all = facts.find("statistics");
  if (all == facts.end() || !all->is_object() || !all->contains(type)) return known;
  const Json& columns = all->at(type);
  if (!columns.is_array()) return known;
  for (const Json& numbers : columns) {
    if (const auto column = column_in(numbers)) known[numbers[0].get<std::string>()] = *column;
  }
  return known;
}

// Returns nullopt unless all columns are known.
std::optional<TableStatistics> statistics_of_all(const std::vector<std::string>& columns,
                                                 const StatisticsByColumn& known) {
  if (columns.empty()) return std::nullopt;
  TableStatistics statistics;
  for (const std::string& name : columns) {
    const auto found = known.find(name);
    if (found == known.end()) return std::nullopt;
    statistics.columns.push_back(found->second);
  }
  return statistics;
}

TableStatistics look_through(const Table& table) {
  constexpr int64_t kRows = 256;
  const TableView& view = table.views().front();
  TableStatistics statistics{std::vector<ColumnStatistics>(view.columns.size())};
  std::string scratch;
  for (int64_t begin = 0; begin < table.size(); begin += kRows) {
    const int64_t end = std::min(begin + kRows, table.size());
    std::vector<CellBuffer> buffers = table.buffers(end - begin);
    table.read(begin, end, buffers, scratch);
    with_type_of(view.kind.cells, [&](auto zero) {
      for (int64_t row = 0; row < end - begin; ++row) {
        const auto* cell = reinterpret_cast<const decltype(zero)*>(buffers[0].bytes_of(row).data());
        for (ColumnStatistics& column : statistics.columns) column.add(static_cast<double>(*cell++));
      }
    });
  }
  return statistics;
}

}  // namespace

TableOutline outline_of(const std::string& path, const TextFormat& format, const OnBytes& on_bytes) {
  const FileLock lock(path);
  Json facts = kept_facts(path, fingerprint_of(path, format));
  if (auto outline = outline_in(facts)) {
    if (on_bytes) on_bytes(facts.at("of").at("size").get<int64_t>());
    return *std::move(outline);
  }
  const std::unique_ptr<Table> table = open_table(path, format, {}, BadRows::Error, on_bytes);
  note(facts, *table);
  save_facts(path, facts);
  return {table->size(), table->id_column(), table->columns()};
}

TableStatistics statistics_of(const std::string& path, const TextFormat& format, const TableView& view) {
  const FileLock lock(path);
  Json facts = kept_facts(path, fingerprint_of(path, format));
  const std::string type = text_of(view.kind.cells);
  StatisticsByColumn known = statistics_in(facts, type);
  if (const auto outline = outline_in(facts)) {
    if (auto all = statistics_of_all(view.columns.empty() ? outline->columns : view.columns, known))
      return *std::move(all);
  }
  const std::unique_ptr<Table> table = open_table(path, format, {view});
  TableStatistics statistics = look_through(*table);
  note(facts, *table);
  for (size_t i = 0; i < statistics.columns.size(); ++i)
    known[table->views().front().columns[i]] = statistics.columns[i];
  if (!facts.contains("statistics") || !facts["statistics"].is_object()) facts["statistics"] = Json::object();
  facts["statistics"][type] = to_json(known);
  save_facts(path, facts);
  return statistics;
}

}  // namespace tutti::data

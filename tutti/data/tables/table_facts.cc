#include "tutti/data/tables/table_facts.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <sys/file.h>
#include <sys/stat.h>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/data/tables/table.h"

namespace tutti::data {
namespace {

constexpr int kVersion = 1;  // of how they are found and written

// Held as long as it lives, where the file system has locks.
class FileLock {
 public:
  explicit FileLock(const std::string& path) : fd_(path, O_RDONLY) {
    static_cast<void>(flock(fd_.get(), LOCK_EX));
  }

 private:
  const FileDescriptor fd_;
};

std::string kept_at(const std::string& path) {
  const std::filesystem::path file(path);
  return (file.parent_path() / ("." + file.filename().string() + ".tutti.json")).string();
}

// Which file, and how it is read.
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

// Nothing where there is none, or it is of another file.
Json kept_facts(const std::string& path, const Json& fingerprint) {
  try {
    const Json facts = Json::parse(read_file(kept_at(path)));
    if (facts.at("of") == fingerprint) return facts;
  } catch (const std::exception&) {
    // Whatever is wrong with it, it can be found out anew.
  }
  return {{"of", fingerprint}};
}

void keep(const std::string& path, const Json& facts) {
  try {
    replace_file(kept_at(path), facts.dump() + "\n");
  } catch (const std::exception&) {
    // Then it is found out again the next time.
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

TableStatistics statistics_in(const Json& columns) {
  TableStatistics statistics;
  for (const Json& numbers : columns) {
    ColumnStatistics& column = statistics.columns.emplace_back();
    column.count = numbers.at(0).get<int64_t>();
    column.missing = numbers.at(1).get<int64_t>();
    if (column.count == 0) continue;
    column.min = numbers.at(2).get<double>();
    column.max = numbers.at(3).get<double>();
    column.mean = numbers.at(4).get<double>();
    column.squares = numbers.at(5).get<double>();
  }
  return statistics;
}

// JSON has no infinite numbers.
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
  try {
    return {facts.at("rows").get<int64_t>(), facts.at("names").get<std::vector<std::string>>()};
  } catch (const Json::exception&) {
    // Not known yet, or somebody has changed it.
  }
  const std::unique_ptr<Table> table = open_table(path, format, kind);
  note(facts, *table);
  keep(path, facts);
  return {table->size(), table->columns()};
}

TableStatistics statistics_of(const std::string& path, const TextFormat& format) {
  const FileLock lock(path);
  Json facts = kept_facts(path, fingerprint_of(path, format));
  if (const auto columns = facts.find("columns"); columns != facts.end()) {
    try {
      return statistics_in(*columns);
    } catch (const Json::exception&) {
      // Somebody has changed it.
    }
  }
  const std::unique_ptr<Table> table = open_table(path, format);
  const TableStatistics statistics = look_through(*table);
  note(facts, *table);
  if (can_be_kept(statistics)) facts["columns"] = to_json(statistics);
  keep(path, facts);
  return statistics;
}

}  // namespace tutti::data
